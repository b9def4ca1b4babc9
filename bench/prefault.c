/*
 * Whether it pays that a template faults in what its children touch first.
 *
 *     prefault <memory in MiB>
 *
 * Each line "<n> <what> <faulted in, in MiB> <touched, in MiB>" on standard input asks for a round, which has a template
 * of its own: a process that maps an image privately, all of whose pages are in the page cache, and does what was said to
 * the first of them: "nothing", "read" (maps them) or "write" (makes them its own, for fork(2) to hand over). It forks n
 * times, one after the other. Each child makes a VM over the memory it inherited, and its guest reads one page and writes
 * the next until all that shall be touched is. All children live until the last has told. The answer is a line of JSON:
 * for each child the microseconds of fork(2), those from before fork(2) until all was touched, those of CPU time that both
 * took together, which a busy machine changes least, and the KiB of memory that are its own then, its page tables among
 * them.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE 4096UL
#define MIB (1UL << 20)
#define FIRST (32 * MIB) /* what lies below is the guest's own */
#define CODE 0x1000UL
#define TABLES 0x10000UL
#define MOST 1000

/* With %rdi where to begin and %rcx how many pages. */
extern const char guest[], guest_end[];
__asm__(".section .rodata\n"
        "guest: test %rcx, %rcx; jz 2f\n"
        "1:     mov (%rdi), %rax\n"
        "       mov %rcx, 4096(%rdi)\n"
        "       add $8192, %rdi\n"
        "       sub $2, %rcx; ja 1b\n"
        "2:     out %al, $0x80\n"
        "       jmp 2b\n"
        "guest_end: .text\n");

/* What a child tells: short enough for a pipe to keep in one piece. */
struct told {
    double fork_us, touched_us, cpu_us;
    long private_kib;
};

static int image;
static size_t size;
static char *ram;

static double us_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int kvm(int fd, unsigned long request, void *argument, const char *what)
{
    int answer = ioctl(fd, request, argument);
    if (answer < 0)
        err(1, "%s", what);
    return answer;
}

/* Every page differs from zero, and the guest's own have its code and tables: four GiB mapped to themselves. */
static void make_image(void)
{
    image = memfd_create("image", MFD_CLOEXEC);
    if (size < 2 * FIRST || image < 0 || ftruncate(image, size))
        err(1, "an image of %zu bytes", size);
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, image, 0);
    if (at == MAP_FAILED)
        err(1, "mapping the image");
    memset(at, 1, size);
    unsigned long *top = (void *)(at + TABLES), *middle = top + 512, *low = middle + 512;
    memset(top, 0, 6 * PAGE);
    top[0] = (TABLES + PAGE) | 3;
    for (unsigned long i = 0; i < 4; i++)
        middle[i] = (TABLES + (2 + i) * PAGE) | 3;
    for (unsigned long i = 0; i < 4 * 512; i++)
        low[i] = i * 2 * MIB | 0x83;
    memcpy(at + CODE, guest, guest_end - guest);
    munmap(at, size);
}

static void start_at_code(int vcpu, size_t touched)
{
    struct kvm_segment code = {.limit = ~0u, .selector = 0x10, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = {.limit = ~0u, .selector = 0x18, .type = 3, .present = 1, .s = 1, .db = 1, .g = 1};
    struct kvm_regs regs = {.rip = CODE, .rflags = 2, .rdi = FIRST, .rcx = touched / PAGE};
    struct kvm_sregs sregs;
    kvm(vcpu, KVM_GET_SREGS, &sregs, "KVM_GET_SREGS");
    sregs.cs = code;
    sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
    sregs.cr3 = TABLES;
    sregs.cr4 = 1 << 5;
    sregs.cr0 = 0x80000001;
    sregs.efer = 0x500;
    kvm(vcpu, KVM_SET_SREGS, &sregs, "KVM_SET_SREGS");
    kvm(vcpu, KVM_SET_REGS, &regs, "KVM_SET_REGS");
}

static void touch(size_t touched)
{
    struct kvm_userspace_memory_region slot = {.memory_size = size, .userspace_addr = (unsigned long)ram};
    int dev = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    int vm = kvm(dev, KVM_CREATE_VM, NULL, "KVM_CREATE_VM");
    kvm(vm, KVM_SET_TSS_ADDR, (void *)0xfffbd000UL, "KVM_SET_TSS_ADDR");
    kvm(vm, KVM_SET_USER_MEMORY_REGION, &slot, "KVM_SET_USER_MEMORY_REGION");
    kvm(vm, KVM_CREATE_IRQCHIP, NULL, "KVM_CREATE_IRQCHIP");
    int vcpu = kvm(vm, KVM_CREATE_VCPU, NULL, "KVM_CREATE_VCPU");
    int len = kvm(dev, KVM_GET_VCPU_MMAP_SIZE, NULL, "KVM_GET_VCPU_MMAP_SIZE");
    struct kvm_run *run = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    if (run == MAP_FAILED)
        err(1, "mapping the vCPU");
    start_at_code(vcpu, touched);
    kvm(vcpu, KVM_RUN, NULL, "KVM_RUN");
    if (run->exit_reason != KVM_EXIT_IO)
        errx(1, "the guest left with reason %u", run->exit_reason);
}

/* The number after a name in a file of the kernel's. */
static long field(const char *path, const char *name)
{
    char line[256];
    long found = -1;
    FILE *file = fopen(path, "r");
    while (file && found < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            found = atol(line + strlen(name));
    if (!file || found < 0)
        errx(1, "no %s in %s", name, path);
    fclose(file);
    return found;
}

static void be_a_child(double begun, size_t touched, int report)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    touch(touched);
    struct told told = {.touched_us = us_of(CLOCK_MONOTONIC) - begun, .cpu_us = us_of(CLOCK_PROCESS_CPUTIME_ID)};
    told.private_kib = field("/proc/self/smaps_rollup", "Private_Dirty:") + field("/proc/self/status", "VmPTE:");
    if (write(report, &told, sizeof told) != sizeof told)
        _exit(1);
    for (;;)
        pause();
}

static void play(int n, const char *what, size_t faulted, size_t touched)
{
    static struct told told[MOST];
    int report[2], advice = strcmp(what, "read") == 0 ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ram = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, image, 0);
    if (ram == MAP_FAILED || pipe(report))
        err(1, "mapping the image");
    if (strcmp(what, "nothing") != 0 && faulted > 0 && madvise(ram + FIRST, faulted, advice))
        err(1, "faulting in %zu bytes", faulted);
    for (int i = 0; i < n; i++) {
        double begun = us_of(CLOCK_MONOTONIC), cpu = us_of(CLOCK_PROCESS_CPUTIME_ID);
        pid_t child = fork();
        if (child == 0)
            be_a_child(begun, touched, report[1]);
        double fork_us = us_of(CLOCK_MONOTONIC) - begun;
        cpu = us_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        if (child < 0)
            err(1, "fork");
        if (read(report[0], &told[i], sizeof told[i]) != sizeof told[i])
            errx(1, "a child did not tell");
        told[i].fork_us = fork_us;
        told[i].cpu_us += cpu;
    }
    printf("[");
    for (int i = 0; i < n; i++)
        printf("%s{\"fork_us\":%.1f,\"touched_us\":%.1f,\"cpu_us\":%.1f,\"private_kib\":%ld}", i ? "," : "",
               told[i].fork_us, told[i].touched_us, told[i].cpu_us, told[i].private_kib);
    printf("]\n");
    fflush(stdout);
    /* They end with their template. */
    _exit(0);
}

int main(int argc, char **argv)
{
    unsigned long faulted, touched;
    char what[8];
    int n, status;
    size = argc == 2 ? (size_t)atol(argv[1]) * MIB : 0;
    make_image();
    while (scanf("%d %7s %lu %lu", &n, what, &faulted, &touched) == 4) {
        if (n < 1 || n > MOST || faulted > (size - FIRST) / MIB || touched > (size - FIRST) / MIB)
            errx(1, "a round has 1 to %d children, who touch at most %lu MiB", MOST, (size - FIRST) / MIB);
        pid_t template = fork();
        if (template == 0)
            play(n, what, faulted * MIB, touched * MIB);
        if (template < 0 || waitpid(template, &status, 0) != template || status)
            errx(1, "the round failed");
    }
    return 0;
}
