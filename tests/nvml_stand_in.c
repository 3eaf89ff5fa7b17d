/* A stand-in for NVIDIA's management library: two GPUs whose numbers are known. The binding loads it by its true name.
 *
 * STAND_IN_NVML says what is wrong with it: "none" no driver, "hot" GPU 1 is throttled, "busy" GPU 0 runs process 4242, "lying" GPU 1
 * has had a memory error, "fast" its ECC is off, "split" it is in MIG mode,
 * "unlinked" no NVLink, "old" a driver for CUDA 11, "shy" a driver that tells only names and memory.
 * STAND_IN_CUDA is the newest CUDA it runs, 12050 without it. Structures and numbers after nvml.h; energy and link counters grow with every reading.
 */
#include <stdlib.h>
#include <string.h>

typedef int Return;
typedef void *Device;
enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9 };
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Use;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; signed long long sll; int si; unsigned short us; } Value;
typedef struct { unsigned id, scope; long long at, took; int type; Return result; Value value; } Field;

static int gpus[2] = {0, 1};
static unsigned long long energy_mj[2] = {1000000, 2000000}, sent_kib[2] = {5000, 7000};

static int is(const char *mood) { const char *m = getenv("STAND_IN_NVML"); return m && !strcmp(m, mood); }
static int number(Device d) { return *(int *)d; }
static Return text(char *to, unsigned room, const char *what) {
    if (strlen(what) + 1 > room) return SMALL;
    strcpy(to, what);
    return SUCCESS;
}
#define SHY if (is("shy")) return UNSUPPORTED

const char *nvmlErrorString(Return r) { return r == NO_DRIVER ? "Driver Not Loaded" : "Not Supported"; }
Return nvmlInitWithFlags(unsigned flags) { (void)flags; return is("none") ? NO_DRIVER : SUCCESS; }
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { return SUCCESS; }
Return nvmlSystemGetDriverVersion(char *to, unsigned room) { return text(to, room, "555.42.06"); }
Return nvmlSystemGetCudaDriverVersion_v2(int *v) {
    const char *cuda = getenv("STAND_IN_CUDA");
    *v = is("old") ? 11080 : cuda ? atoi(cuda) : 12050;
    return SUCCESS;
}
Return nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return SUCCESS; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned i, Device *d) {
    if (i > 1) return INVALID;
    *d = &gpus[i];
    return SUCCESS;
}
Return nvmlDeviceGetName(Device d, char *to, unsigned room) { (void)d; return text(to, room, "NVIDIA H100 80GB HBM3"); }
Return nvmlDeviceGetUUID(Device d, char *to, unsigned room) { return text(to, room, number(d) ? "GPU-bb22" : "GPU-aa11"); }
Return nvmlDeviceGetMemoryInfo(Device d, Memory *m) {
    m->total = 85899345920ull;
    m->used = is("busy") && !number(d) ? 40000000000ull : 500000000ull;
    m->free = m->total - m->used;
    return SUCCESS;
}
Return nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) { SHY; (void)d; *major = 9; *minor = 0; return SUCCESS; }
Return nvmlDeviceGetPowerUsage(Device d, unsigned *mw) { SHY; *mw = 350000 + 1000 * number(d); return SUCCESS; }
Return nvmlDeviceGetTotalEnergyConsumption(Device d, unsigned long long *mj) {
    SHY;
    *mj = energy_mj[number(d)] += 350000;
    return SUCCESS;
}
Return nvmlDeviceGetPowerManagementLimit(Device d, unsigned *mw) { SHY; *mw = is("hot") && number(d) ? 500000 : 700000; return SUCCESS; }
Return nvmlDeviceGetPowerManagementDefaultLimit(Device d, unsigned *mw) { SHY; (void)d; *mw = 700000; return SUCCESS; }
Return nvmlDeviceGetClockInfo(Device d, int type, unsigned *mhz) {
    SHY;
    *mhz = type == 2 ? 2619 : is("hot") && number(d) ? 1200 : 1980;
    return SUCCESS;
}
Return nvmlDeviceGetMaxClockInfo(Device d, int type, unsigned *mhz) { SHY; (void)d; *mhz = type == 2 ? 2619 : 1980; return SUCCESS; }
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device d, unsigned long long *bits) {
    SHY;
    *bits = is("hot") && number(d) ? 0x60 : 0x1;
    return SUCCESS;
}
Return nvmlDeviceGetCurrentClocksEventReasons(Device d, unsigned long long *bits) { return nvmlDeviceGetCurrentClocksThrottleReasons(d, bits); }
Return nvmlDeviceGetTemperature(Device d, int sensor, unsigned *c) { SHY; (void)sensor; *c = 45 + 40 * (is("hot") && number(d)); return SUCCESS; }
Return nvmlDeviceGetUtilizationRates(Device d, Use *u) { SHY; (void)d; u->gpu = 90; u->memory = 50; return SUCCESS; }
Return nvmlDeviceGetEccMode(Device d, int *now, int *next) { SHY; *now = *next = !(is("fast") && number(d)); return SUCCESS; }
Return nvmlDeviceGetTotalEccErrors(Device d, int type, int since, unsigned long long *n) { SHY; (void)type; (void)since; *n = 3 * (is("lying") && number(d)); return SUCCESS; }
Return nvmlDeviceGetMigMode(Device d, unsigned *now, unsigned *next) { SHY; *now = *next = is("split") && number(d); return SUCCESS; }
Return nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, Process *p) {
    SHY;
    unsigned has = is("busy") && !number(d) ? 1 : 0;
    if (!p || *count < has) { *count = has; return has ? SMALL : SUCCESS; }
    *count = has;
    if (has) { p[0].pid = 4242; p[0].used = 39000000000ull; p[0].instance = p[0].compute = 0xffffffffu; }
    return SUCCESS;
}
Return nvmlDeviceGetNvLinkState(Device d, unsigned link, int *active) { SHY; (void)d; if (link > 17) return INVALID; *active = !is("unlinked"); return SUCCESS; }
Return nvmlDeviceGetP2PStatus(Device a, Device b, int which, int *status) { SHY; (void)a; (void)b; (void)which; *status = is("unlinked") ? 4 : 0; return SUCCESS; }
Return nvmlDeviceGetFieldValues(Device d, int count, Field *f) {
    SHY;
    for (int i = 0; i < count; i++) {
        f[i].result = f[i].id == 138 || f[i].id == 139 ? SUCCESS : UNSUPPORTED;
        f[i].value.ull = sent_kib[number(d)] += 1024;
    }
    return SUCCESS;
}
