/* microkernels.c -- CPU features by CPUID, and the permission to use AMX. */
#define _DEFAULT_SOURCE
#include "device/cpu/microkernels.h"

#include <pthread.h>
#include <string.h>
#include "device/cpu/cpu.h"

/* One per process. Written once, under the lock, before any thread reads it. */
static struct {
    pthread_mutex_t lock;
    bool open, amx;
    CpuMicrokernel in_use;
} chosen = {.lock = PTHREAD_MUTEX_INITIALIZER};

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LEAF_FEATURES = 7, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AVX512_BF16 = 1 << 5 };
/* Linux asm/prctl.h: ARCH_REQ_XCOMP_PERM. XSAVE components of AMX: 17 (tile config), 18 (tile
 * data). */
enum { REQUEST_STATE = 0x1023, TILE_DATA = 18, TILE_STATES = 3 << 17 };

/* XCR0: the state components that the operating system saves at a context switch. */
static uint64_t saved_states(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* True if the CPU has AMX for bf16 and the operating system saves its state and grants it. */
static bool request_amx(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(LEAF_FEATURES, 0, &a, &b, &c, &d)) return false;
    if (!(d & AMX_TILE) || !(d & AMX_BF16)) return false;
    if ((saved_states() & TILE_STATES) != TILE_STATES) return false; /* AVX-512 implies XGETBV */
#ifdef SYS_arch_prctl
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}

static bool has_dot(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(LEAF_FEATURES, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
}

static bool made_by_amd(void)
{
    unsigned a, name[3];
    if (!__get_cpuid(0, &a, &name[0], &name[2], &name[1])) return false;
    return memcmp(name, "AuthenticAMD", 12) == 0 || memcmp(name, "HygonGenuine", 12) == 0;
}

#else

static bool request_amx(void) { return false; }

static bool has_dot(void) { return false; }

static bool made_by_amd(void) { return false; }

#endif

bool microkernel_available(CpuMicrokernel kernel)
{
    if (kernel == MICROKERNEL_FMA) return true;
    if (!cpu_has(CPU_AVX512)) return false;
    return kernel == MICROKERNEL_AMX ? chosen.amx : kernel == MICROKERNEL_DOT ? has_dot() : true;
}

void microkernels_open(void)
{
    pthread_mutex_lock(&chosen.lock);
    if (!chosen.open) {
        chosen.amx = cpu_has(CPU_AVX512) && has_dot() && request_amx();
        if (chosen.amx)
            chosen.in_use = MICROKERNEL_AMX;
        else if (microkernel_available(MICROKERNEL_DOT) && made_by_amd())
            chosen.in_use = MICROKERNEL_DOT;
    }
    chosen.open = true;
    pthread_mutex_unlock(&chosen.lock);
}

CpuMicrokernel microkernel_in_use(void) { return chosen.in_use; }

void microkernel_use(CpuMicrokernel kernel) { chosen.in_use = kernel; }

/* AMX implies AVX512-BF16 here: microkernels_open checks has_dot for both. */
bool microkernel_rounds_bf16(void)
{
    return chosen.in_use == MICROKERNEL_DOT || chosen.in_use == MICROKERNEL_AMX;
}

const char *microkernel_text(CpuMicrokernel kernel)
{
    static const char *const text[N_CPU_MICROKERNELS] = {"f32 multiply-adds", "AVX512-BF16", "AMX",
                                                         "emulated AMX"};
    return text[kernel];
}
