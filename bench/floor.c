/*
 * What the kernel alone charges for a VM in a process of its own; no spawn can cost less.
 *
 *     floor <memory in MiB>
 *
 * Each line "<n> <kind>" on standard input asks for a round: n forks, each of which maps the image privately, makes a VM
 * with interrupt controllers, a memory slot and a vCPU, and runs a guest of three instructions to its first exit. The
 * kind says what comes first, "slot" or "chips"; with "pit" the chips do, and among them the timer that every PC has.
 * The guest then sleeps in KVM_RUN, as one that is alive does. All of them live until the last has told. The answer is a line of JSON with
 * microseconds: of the round, of CPU time for all of it, and the mean of each stage. Nothing is restored and there is
 * no device.
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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define MOST 10000

enum kind { SLOT_FIRST, CHIPS_FIRST, PIT_TOO };
enum { FORK, VM, CHIPS, SLOT, VCPU, RUN, STAGES };
static const char *const NAMES[STAGES] = {"fork", "vm", "irqchip", "memory", "vcpu", "first exit"};

/* What a child tells: short enough for a pipe to keep in one piece. */
struct told {
    double us[STAGES], cpu_us;
};

static int image;
static size_t size;

static double us_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* The time since *last, which becomes now. */
static double lap(double *last)
{
    double now = us_of(CLOCK_MONOTONIC), passed = now - *last;
    *last = now;
    return passed;
}

static int kvm(int fd, unsigned long request, void *argument, const char *what)
{
    int answer = ioctl(fd, request, argument);
    if (answer < 0)
        err(1, "%s", what);
    return answer;
}

static void give_chips(int vm, enum kind kind)
{
    struct kvm_pit_config pit = {0};
    kvm(vm, KVM_SET_TSS_ADDR, (void *)0xfffbd000UL, "KVM_SET_TSS_ADDR");
    kvm(vm, KVM_CREATE_IRQCHIP, NULL, "KVM_CREATE_IRQCHIP");
    if (kind == PIT_TOO)
        kvm(vm, KVM_CREATE_PIT2, &pit, "KVM_CREATE_PIT2");
}

static void give_memory(int vm)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, image, 0);
    struct kvm_userspace_memory_region slot = {.memory_size = size, .userspace_addr = (unsigned long)at};
    if (at == MAP_FAILED)
        err(1, "mapping the image");
    kvm(vm, KVM_SET_USER_MEMORY_REGION, &slot, "KVM_SET_USER_MEMORY_REGION");
}

/* In real mode, from the image's second page on. */
static void start_at_code(int vcpu)
{
    struct kvm_regs regs = {.rip = PAGE, .rflags = 2};
    struct kvm_sregs sregs;
    kvm(vcpu, KVM_GET_SREGS, &sregs, "KVM_GET_SREGS");
    sregs.cs.base = sregs.cs.selector = 0;
    kvm(vcpu, KVM_SET_SREGS, &sregs, "KVM_SET_SREGS");
    kvm(vcpu, KVM_SET_REGS, &regs, "KVM_SET_REGS");
}

/* A VM from its beginning to its first exit; what it runs on with is left in *running. */
static struct told live(double last, enum kind kind, int *running)
{
    struct told told = {.us[FORK] = lap(&last)};
    int dev = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    int vm = kvm(dev, KVM_CREATE_VM, NULL, "KVM_CREATE_VM");
    told.us[VM] = lap(&last);
    if (kind == SLOT_FIRST) {
        give_memory(vm);
        told.us[SLOT] = lap(&last);
    }
    give_chips(vm, kind);
    told.us[CHIPS] = lap(&last);
    if (kind != SLOT_FIRST) {
        give_memory(vm);
        told.us[SLOT] = lap(&last);
    }
    int vcpu = kvm(vm, KVM_CREATE_VCPU, NULL, "KVM_CREATE_VCPU");
    int len = kvm(dev, KVM_GET_VCPU_MMAP_SIZE, NULL, "KVM_GET_VCPU_MMAP_SIZE");
    struct kvm_run *run = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    if (run == MAP_FAILED)
        err(1, "mapping the vCPU");
    start_at_code(vcpu);
    told.us[VCPU] = lap(&last);
    kvm(vcpu, KVM_RUN, NULL, "KVM_RUN");
    if (run->exit_reason != KVM_EXIT_IO)
        errx(1, "the guest left with reason %u", run->exit_reason);
    told.us[RUN] = lap(&last);
    *running = vcpu;
    told.cpu_us = us_of(CLOCK_PROCESS_CPUTIME_ID);
    return told;
}

static void play(int n, enum kind kind)
{
    static pid_t child[MOST];
    int pipe_of[2];
    if (pipe(pipe_of))
        err(1, "pipe");
    double cpu = us_of(CLOCK_PROCESS_CPUTIME_ID), begun = us_of(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++) {
        child[i] = fork();
        if (child[i] < 0)
            err(1, "fork");
        if (child[i] == 0) {
            int vcpu;
            struct told told = live(begun, kind, &vcpu);
            if (write(pipe_of[1], &told, sizeof told) != sizeof told)
                _exit(1);
            for (;;)
                kvm(vcpu, KVM_RUN, NULL, "KVM_RUN");
        }
    }
    close(pipe_of[1]);
    struct told sum = {0}, told;
    for (int i = 0; i < n; i++) {
        if (read(pipe_of[0], &told, sizeof told) != sizeof told)
            errx(1, "a child did not tell");
        for (int stage = 0; stage < STAGES; stage++)
            sum.us[stage] += told.us[stage];
        sum.cpu_us += told.cpu_us;
    }
    double all = us_of(CLOCK_MONOTONIC) - begun;
    cpu = us_of(CLOCK_PROCESS_CPUTIME_ID) - cpu + sum.cpu_us;
    close(pipe_of[0]);
    for (int i = 0; i < n; i++)
        kill(child[i], SIGKILL);
    for (int i = 0; i < n; i++)
        waitpid(child[i], NULL, 0);
    printf("{\"wall_us\":%.1f,\"cpu_us\":%.1f,\"stages_us\":{", all, cpu);
    for (int stage = 0; stage < STAGES; stage++)
        printf("%s\"%s\":%.1f", stage ? "," : "", NAMES[stage], sum.us[stage] / n);
    printf("}}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const unsigned char code[] = {0xb0, 'x', 0xe6, 0x80, 0xf4}; /* mov al, 'x'; out 0x80, al; hlt */
    char kind[8];
    int n;
    size = argc == 2 ? (size_t)atol(argv[1]) << 20 : 0;
    image = memfd_create("image", MFD_CLOEXEC);
    if (size < 2 * PAGE || image < 0 || ftruncate(image, size) || pwrite(image, code, sizeof code, PAGE) != sizeof code)
        err(1, "an image of \"%s\" MiB", argc == 2 ? argv[1] : "");
    while (scanf("%d %7s", &n, kind) == 2) {
        if (n < 1 || n > MOST)
            errx(1, "a round has 1 to %d VMs, not %d", MOST, n);
        play(n, strcmp(kind, "slot") == 0 ? SLOT_FIRST : strcmp(kind, "pit") == 0 ? PIT_TOO : CHIPS_FIRST);
    }
    return 0;
}
