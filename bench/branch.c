/*
 * What the kernel alone charges for branching a running VM by fork(2); no branch can cost less.
 *
 *     branch <memory in MiB>
 *
 * Each line "<diverged in MiB>" on standard input asks for a round: a VM over a private mapping of an empty image,
 * whose guest writes so much of its memory, a page at a time and over and over. When all of it has been written, the vCPU
 * is stopped, its registers are read, the process forks, and the vCPU goes on. The copy makes a VM of the memory it
 * inherited and of the registers, and runs it to its first exit. The answer is a line of JSON with microseconds: for how
 * long the guest stood still, when the copy's guest left for the first time, and the longest time between two writes of
 * the guest's afterwards. A round lives in a process of its own. There is no device, no disk and nothing else to save.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <linux/kvm.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define FIRST (32 * MIB) /* what lies below is the guest's own */
#define HOLE (3072 * MIB) /* memory beyond goes above four GiB, where a PC has it */
#define TABLES 0x10000UL
#define CODE 0x1000UL
#define LOOK_MS 200

/* What guest and host tell each other, in the guest's third page. */
struct talk {
    unsigned long pages, passes, longest, leave;
};
#define TALK 0x2000UL

/* Until it shall leave, the guest writes all pages and keeps the longest gap between two writes. */
extern const char guest[], guest_end[];
__asm__(".section .rodata\n"
        "guest: mov $0x2000, %ebx\n"
        "       rdtsc; shl $32, %rdx; lea (%rax, %rdx), %r8\n"
        "0:     incq 8(%rbx)\n"
        "       mov $0x2000000, %edi\n"
        "       mov (%rbx), %rcx\n"
        "1:     cmpq $0, 24(%rbx); jne 4f\n"
        "2:     mov %r8, (%rdi)\n"
        "       add $4096, %rdi\n"
        "       mov %r8, %r9\n"
        "       rdtsc; shl $32, %rdx; lea (%rax, %rdx), %r8\n"
        "       neg %r9; add %r8, %r9\n"
        "       cmp 16(%rbx), %r9; jbe 3f\n"
        "       mov %r9, 16(%rbx)\n"
        "3:     dec %rcx; jnz 1b\n"
        "       jmp 0b\n"
        "4:     out %al, $0x80\n"
        "       jmp 2b\n"
        "guest_end: .text\n");

static char *ram;
static size_t size;
static int vcpu;
static struct kvm_run *run;
static volatile struct talk *talk;
static pthread_mutex_t lot = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int wanted, parked;
static struct kvm_regs regs;
static struct kvm_sregs sregs;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int kvm(int fd, unsigned long request, void *argument, const char *what)
{
    int answer = ioctl(fd, request, argument);
    if (answer < 0)
        err(1, "%s", what);
    return answer;
}

static void make_vm(int *dev, int *vm)
{
    size_t low = size < HOLE ? size : HOLE;
    struct kvm_userspace_memory_region slot = {.memory_size = low, .userspace_addr = (unsigned long)ram};
    struct kvm_userspace_memory_region rest = {
        .slot = 1, .guest_phys_addr = 4096 * MIB, .memory_size = size - low, .userspace_addr = (unsigned long)ram + low};
    *dev = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    *vm = kvm(*dev, KVM_CREATE_VM, NULL, "KVM_CREATE_VM");
    kvm(*vm, KVM_SET_TSS_ADDR, (void *)0xfffbd000UL, "KVM_SET_TSS_ADDR");
    kvm(*vm, KVM_SET_USER_MEMORY_REGION, &slot, "KVM_SET_USER_MEMORY_REGION");
    if (rest.memory_size > 0)
        kvm(*vm, KVM_SET_USER_MEMORY_REGION, &rest, "KVM_SET_USER_MEMORY_REGION");
    kvm(*vm, KVM_CREATE_IRQCHIP, NULL, "KVM_CREATE_IRQCHIP");
    vcpu = kvm(*vm, KVM_CREATE_VCPU, NULL, "KVM_CREATE_VCPU");
    int len = kvm(*dev, KVM_GET_VCPU_MMAP_SIZE, NULL, "KVM_GET_VCPU_MMAP_SIZE");
    run = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    if (run == MAP_FAILED || madvise(run, len, MADV_DONTFORK))
        err(1, "mapping the vCPU");
}

/* In 64-bit mode, with four GiB mapped to themselves by huge pages. */
static void start_at_code(void)
{
    struct kvm_segment code = {.limit = ~0u, .selector = 0x10, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = {.limit = ~0u, .selector = 0x18, .type = 3, .present = 1, .s = 1, .db = 1, .g = 1};
    unsigned long *top = (void *)(ram + TABLES), *middle = top + 512, *low = middle + 512;
    top[0] = (TABLES + PAGE) | 3;
    for (unsigned long i = 0; i < 4; i++)
        middle[i] = (TABLES + (2 + i) * PAGE) | 3;
    for (unsigned long i = 0; i < 4 * 512; i++)
        low[i] = i * 2 * MIB | 0x83;
    kvm(vcpu, KVM_GET_SREGS, &sregs, "KVM_GET_SREGS");
    sregs.cs = code;
    sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
    sregs.cr3 = TABLES;
    sregs.cr4 = 1 << 5;
    sregs.cr0 = 0x80000001;
    sregs.efer = 0x500;
    regs = (struct kvm_regs){.rip = CODE, .rflags = 2};
    kvm(vcpu, KVM_SET_SREGS, &sregs, "KVM_SET_SREGS");
    kvm(vcpu, KVM_SET_REGS, &regs, "KVM_SET_REGS");
}

static void *vcpu_thread(void *unused)
{
    for (;;) {
        if (ioctl(vcpu, KVM_RUN, NULL) == 0)
            errx(1, "the guest left with reason %u", run->exit_reason);
        if (errno != EINTR && errno != EAGAIN)
            err(1, "KVM_RUN");
        pthread_mutex_lock(&lot);
        run->immediate_exit = 0;
        if (wanted) {
            kvm(vcpu, KVM_GET_REGS, &regs, "KVM_GET_REGS");
            kvm(vcpu, KVM_GET_SREGS, &sregs, "KVM_GET_SREGS");
            parked = 1;
            pthread_cond_broadcast(&changed);
            while (wanted)
                pthread_cond_wait(&changed, &lot);
            parked = 0;
        }
        pthread_mutex_unlock(&lot);
    }
    return unused;
}

static void be_the_branch(int dev, int vm, int report)
{
    close(vcpu), close(vm), close(dev);
    make_vm(&dev, &vm);
    talk->leave = 1;
    kvm(vcpu, KVM_SET_SREGS, &sregs, "KVM_SET_SREGS");
    kvm(vcpu, KVM_SET_REGS, &regs, "KVM_SET_REGS");
    kvm(vcpu, KVM_RUN, NULL, "KVM_RUN");
    double at = now_us();
    _exit(run->exit_reason != KVM_EXIT_IO || write(report, &at, sizeof at) != sizeof at);
}

static void on_kick(int signal) { (void)signal; }

static void start_guest(size_t diverged, int *dev, int *vm, pthread_t *thread)
{
    int image = memfd_create("image", MFD_CLOEXEC);
    if (image < 0 || ftruncate(image, size))
        err(1, "image");
    ram = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, image, 0);
    if (ram == MAP_FAILED)
        err(1, "mapping the image");
    memcpy(ram + CODE, guest, guest_end - guest);
    talk = (void *)(ram + TALK);
    talk->pages = diverged / PAGE;
    make_vm(dev, vm);
    start_at_code();
    struct sigaction action = {.sa_handler = on_kick};
    if (sigaction(SIGUSR1, &action, NULL) || pthread_create(thread, NULL, vcpu_thread, NULL))
        errx(1, "no thread for the vCPU");
    while (talk->passes < 2)
        usleep(1000);
}

static void play(size_t diverged)
{
    int dev, vm, report[2], status;
    pthread_t thread;
    double first;
    if (pipe(report))
        err(1, "pipe");
    start_guest(diverged, &dev, &vm, &thread);
    double ticks_from = __rdtsc(), from = now_us();
    pthread_mutex_lock(&lot);
    wanted = 1;
    run->immediate_exit = 1;
    pthread_kill(thread, SIGUSR1);
    while (!parked)
        pthread_cond_wait(&changed, &lot);
    pid_t branch = fork();
    if (branch == 0)
        be_the_branch(dev, vm, report[1]);
    talk->longest = 0;
    wanted = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lot);
    double pause = now_us() - from;
    /* The first gap is the pause. */
    while (talk->longest == 0)
        usleep(10);
    talk->longest = 0;
    if (branch < 0 || read(report[0], &first, sizeof first) != sizeof first)
        errx(1, "the branch did not tell");
    if (waitpid(branch, &status, 0) != branch || status)
        errx(1, "the branch ended with %#x", status);
    usleep(LOOK_MS * 1000);
    double ticks = (__rdtsc() - ticks_from) / (now_us() - from);
    printf("{\"pause_us\":%.1f,\"first_exit_us\":%.1f,\"longest_gap_us\":%.1f}\n", pause, first - from,
           talk->longest / ticks);
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    long diverged;
    size = argc == 2 ? (size_t)atol(argv[1]) * MIB : 0;
    while (scanf("%ld", &diverged) == 1) {
        int status;
        if (diverged < 1 || FIRST + diverged * MIB > (size < HOLE ? size : HOLE))
            errx(1, "%ld MiB do not fit above the first %lu of %s", diverged, FIRST / MIB, argc == 2 ? argv[1] : "none");
        pid_t round = fork();
        if (round == 0)
            play(diverged * MIB);
        if (round < 0 || waitpid(round, &status, 0) != round || status)
            errx(1, "the round failed");
    }
    return 0;
}
