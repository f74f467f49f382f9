/* Faults inside a node's process, switched on and off from outside while it runs.
 *
 * Loaded with LD_PRELOAD. JEPSEN_FAULTS names a file of CONTROL_BYTES that is mapped here and
 * changed by the harness (see shim.rs, which owns the layout):
 *
 *    0  i64  added to the wall clock, nanoseconds
 *    8  u32  what positioned writes do: 0 as ever, 1 EIO, 2 ENOSPC beyond a file's end (and for
 *             creating, renaming, lengthening, reserving), 3 only a part is written
 *   12  u32  what flushes do: 0 as ever, 1 EIO, nothing flushed
 *   16  u32  each flush and write takes this many microseconds more
 *   20  u32  of a thousand calls, so many are hit
 *   24  u64  counts the calls that were hit (written here, as all that follows but the reads)
 *   32  u64  counts the times that a shifted wall clock was looked at
 *   40  u64  counts the processes that have loaded this
 *   48  u64  counts the calls to which the disk itself said ENOSPC
 *   56  u32  what positioned reads do: 0 as ever, 1 EIO
 *
 * The clock is an ordinary wrapper around clock_gettime. Reads, writes and flushes are made by raw system
 * calls as well as through libc, so they are caught in the kernel: a seccomp filter traps them, and
 * the handler makes the call itself from one place that the filter lets through.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define CONTROL_BYTES 4096

struct control {
    volatile int64_t wall_nanos;
    volatile uint32_t writes;
    volatile uint32_t flushes;
    volatile uint32_t delay_micros;
    volatile uint32_t permille;
    volatile uint64_t hits;
    volatile uint64_t wall_looks;
    volatile uint64_t loads;
    volatile uint64_t full;
    volatile uint32_t reads;
};

static struct control *control;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

/* The only place from which the trapped calls reach the kernel. */
long shim_raw_call(long number, long a, long b, long c, long d, long e, long f);
extern char shim_raw_end[];

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
__asm__(".text\n.globl shim_raw_call\n.hidden shim_raw_call\n.globl shim_raw_end\n"
        ".hidden shim_raw_end\n.type shim_raw_call,@function\n"
        "shim_raw_call:\n"
        "  mov %rdi, %rax\n  mov %rsi, %rdi\n  mov %rdx, %rsi\n  mov %rcx, %rdx\n"
        "  mov %r8, %r10\n  mov %r9, %r8\n  mov 8(%rsp), %r9\n"
        "  syscall\n"
        "shim_raw_end:\n  ret\n");
#define RESULT(context) ((context)->uc_mcontext.gregs[REG_RAX])
#define ARGUMENT(context, n) ((context)->uc_mcontext.gregs[(const int[]){REG_RDI, REG_RSI, \
    REG_RDX, REG_R10, REG_R8, REG_R9}[n]])
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
__asm__(".text\n.globl shim_raw_call\n.hidden shim_raw_call\n.globl shim_raw_end\n"
        ".hidden shim_raw_end\n.type shim_raw_call,%function\n"
        "shim_raw_call:\n"
        "  mov x8, x0\n  mov x0, x1\n  mov x1, x2\n  mov x2, x3\n  mov x3, x4\n"
        "  mov x4, x5\n  mov x5, x6\n"
        "  svc #0\n"
        "shim_raw_end:\n  ret\n");
#define RESULT(context) ((context)->uc_mcontext.regs[0])
#define ARGUMENT(context, n) ((context)->uc_mcontext.regs[n])
#else
#error "no such architecture yet"
#endif

static int is_hit(void) {
    static volatile uint64_t state = 0x9e3779b97f4a7c15;
    uint64_t x = __sync_add_and_fetch(&state, 0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return (x >> 33) % 1000 < control->permille;
}

static void hit(void) {
    __sync_add_and_fetch(&control->hits, 1);
}

static int is_flush(long number) {
    return number == SYS_fdatasync || number == SYS_fsync;
}

static int is_read(long number) {
    return number == SYS_pread64 || number == SYS_preadv;
}

static int is_write(long number) {
    return number == SYS_pwrite64 || number == SYS_pwritev;
}

/* Whether a file would be longer: what is written over has its place already. */
static int lengthens(long file, int64_t end) {
    struct stat stat;
    return fstat((int)file, &stat) != 0 || end > (int64_t)stat.st_size;
}

/* What takes space: a write or a cut beyond a file's end, a file that is made or renamed, and a
 * reservation. */
static int takes_space(long number, long a, long b, long c, long d) {
    if (number == SYS_pwrite64)
        return lengthens(a, d + c);
    if (number == SYS_pwritev) {
        const struct iovec *chunks = (const struct iovec *)b;
        int64_t end = d;
        for (long place = 0; place < c; place++)
            end += (int64_t)chunks[place].iov_len;
        return lengthens(a, end);
    }
    if (number == SYS_ftruncate)
        return lengthens(a, b);
#ifdef SYS_open
    if (number == SYS_open)
        return (b & O_CREAT) != 0;
#endif
    if (number == SYS_openat)
        return (c & O_CREAT) != 0;
    return 1;
}

/* Only positioned writes are trapped, so standard output and sockets never come here. */
static long write_part(long number, long file, long data, long count, long low, long high) {
    if (number == SYS_pwrite64)
        return shim_raw_call(number, file, data, count > 1 ? count / 2 : count, low, 0, 0);
    const struct iovec *chunks = (const struct iovec *)data;
    if (count < 1)
        return 0;
    struct iovec first = chunks[0];
    if (count == 1 && first.iov_len > 1)
        first.iov_len /= 2;
    return shim_raw_call(number, file, (long)&first, 1, low, high, 0);
}

static void on_trap(int signal, siginfo_t *info, void *opaque) {
    (void)signal;
    ucontext_t *context = opaque;
    long number = info->si_syscall;
    long a = ARGUMENT(context, 0), b = ARGUMENT(context, 1), c = ARGUMENT(context, 2),
         d = ARGUMENT(context, 3), e = ARGUMENT(context, 4), f = ARGUMENT(context, 5);
    int saved = errno;
    int moves_bytes = is_write(number) || is_flush(number);
    uint32_t delay = control->delay_micros;
    if (delay > 0 && moves_bytes && is_hit()) {
        struct timespec wait = {delay / 1000000, (long)(delay % 1000000) * 1000};
        hit();
        shim_raw_call(SYS_nanosleep, (long)&wait, 0, 0, 0, 0, 0);
    }
    long result;
    uint32_t mode = 0;
    if (is_flush(number))
        mode = control->flushes;
    else if (is_read(number))
        mode = control->reads;
    else if (is_write(number) && control->writes != 2)
        mode = control->writes;
    else if (control->writes == 2 && takes_space(number, a, b, c, d))
        mode = 2;
    if (mode == 0 || !is_hit()) {
        result = shim_raw_call(number, a, b, c, d, e, f);
        if (result == -ENOSPC)
            __sync_add_and_fetch(&control->full, 1);
    } else {
        hit();
        if (mode == 1)
            result = -EIO;
        else if (mode == 2)
            result = -ENOSPC;
        else
            result = write_part(number, a, b, c, d, e);
    }
    RESULT(context) = result;
    errno = saved;
}

#define LET(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)

static void trap_calls(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
    if (sigaction(SIGSYS, &action, NULL) != 0)
        _exit(126);
    uint64_t let = (uint64_t)(uintptr_t)shim_raw_end;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        /* From our own place: let through (the kernel shows where the call returns to). */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)let, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(let >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        LET(SYS_pwritev), LET(SYS_pwrite64), LET(SYS_fdatasync), LET(SYS_fsync),
        LET(SYS_preadv), LET(SYS_pread64),
        LET(SYS_openat), LET(SYS_renameat), LET(SYS_renameat2), LET(SYS_ftruncate),
        LET(SYS_fallocate),
#ifdef SYS_open
        LET(SYS_open),
#endif
#ifdef SYS_rename
        LET(SYS_rename),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(126);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("JEPSEN_FAULTS");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (path == NULL)
        return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        _exit(126);
    void *mapped = mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        _exit(126);
    control = mapped;
    __sync_add_and_fetch(&control->loads, 1);
    trap_calls();
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int code = real_clock_gettime ? real_clock_gettime(clock, time)
                                  : (int)syscall(SYS_clock_gettime, clock, time);
    if (code == 0 && control != NULL &&
        (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        if (control->wall_nanos != 0)
            __sync_add_and_fetch(&control->wall_looks, 1);
        int64_t nanos = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + control->wall_nanos;
        if (nanos < 0)
            nanos = 0;
        time->tv_sec = nanos / 1000000000;
        time->tv_nsec = nanos % 1000000000;
    }
    return code;
}
