// A driver without a device: memory is the host's, work is done when it is queued, and modules are shared libraries
// that hold kernels compiled as C++ (device.h). It answers to the few functions that crates/cuda calls, under the name
// libcuda.so.1, so that everything above the driver runs on machines without a GPU.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

typedef int Result;
typedef uint64_t Address;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

// Small enough that running out of it can be tested.
static const size_t MEMORY = size_t(4) << 30;
static const int MOST = 8;
static std::atomic<size_t> used[MOST];

// How many devices there are: PLANARIA_EMULATED_DEVICES, else one.
static int devices() {
    const char* text = getenv("PLANARIA_EMULATED_DEVICES");
    int count = text ? atoi(text) : 1;
    return count < 1 ? 1 : count > MOST ? MOST : count;
}
static thread_local int current = 0;

// Whose memory an address is: copies may touch that of the current device only.
static std::mutex blocks_lock;
static std::map<Address, std::pair<size_t, int>> blocks;
static bool is_here(Address address, size_t bytes) {
    std::lock_guard<std::mutex> held(blocks_lock);
    auto next = blocks.upper_bound(address);
    if (next == blocks.begin()) return bytes == 0;
    auto [start, block] = *--next;
    return bytes == 0 || (block.second == current && address + bytes <= start + block.first);
}

struct Event { std::chrono::steady_clock::time_point at; };
struct Function { void (*run)(const unsigned*, unsigned, void**); };

#define API extern "C" __attribute__((visibility("default"))) Result

API cuInit(unsigned) { return SUCCESS; }
API cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
API cuDeviceGetCount(int* count) { *count = devices(); return SUCCESS; }
API cuDeviceGetName(char* name, int len, int) { snprintf(name, len, "emulated device"); return SUCCESS; }
API cuDeviceGetUuid_v2(char* uuid, int device) { memset(uuid, 7 + device, 16); return SUCCESS; }
API cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = MEMORY; return SUCCESS; }
API cuDeviceGetAttribute(int* value, int which, int) {
    // Two multiprocessors, compute capability 7.0: no tensor cores that kernels here use.
    *value = which == 16 ? 2 : which == 75 ? 7 : 0;
    return SUCCESS;
}
API cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(intptr_t)(device + 1); return SUCCESS; }
API cuCtxSetCurrent(void* context) {
    if (context) current = int((intptr_t)context - 1);
    return SUCCESS;
}
API cuMemGetInfo_v2(size_t* free, size_t* total) { *free = MEMORY - used[current]; *total = MEMORY; return SUCCESS; }
API cuStreamCreate(void** stream, unsigned) { *stream = new int(0); return SUCCESS; }
API cuStreamDestroy_v2(void* stream) { delete (int*)stream; return SUCCESS; }
API cuStreamSynchronize(void*) { return SUCCESS; }
API cuStreamWaitEvent(void*, void*, unsigned) { return SUCCESS; }
// Work is done when it is queued, so none can be recorded.
API cuStreamBeginCapture_v2(void*, int) { return NOT_SUPPORTED; }
API cuEventCreate(void** event, unsigned) { *event = new Event(); return SUCCESS; }
API cuEventDestroy_v2(void* event) { delete (Event*)event; return SUCCESS; }
API cuEventRecord(void* event, void*) { ((Event*)event)->at = std::chrono::steady_clock::now(); return SUCCESS; }
API cuEventQuery(void*) { return SUCCESS; }
API cuEventSynchronize(void*) { return SUCCESS; }
API cuEventElapsedTime_v2(float* ms, void* start, void* end) {
    *ms = std::chrono::duration<float, std::milli>(((Event*)end)->at - ((Event*)start)->at).count();
    return SUCCESS;
}

// A page before the memory stays free, so that a read in front of a block is not one of its neighbour.
static const size_t PAGE = 4096;
API cuMemAlloc_v2(Address* address, size_t bytes) {
    if (used[current] + bytes > MEMORY) return OUT_OF_MEMORY;
    void* p = mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    used[current] += bytes;
    *address = (Address)p + PAGE;
    std::lock_guard<std::mutex> held(blocks_lock);
    blocks[*address] = {bytes, current};
    return SUCCESS;
}
API cuMemFree_v2(Address address) {
    std::lock_guard<std::mutex> held(blocks_lock);
    auto block = blocks.find(address);
    if (block == blocks.end()) return INVALID_VALUE;
    auto [bytes, device] = block->second;
    blocks.erase(block);
    used[device] -= bytes;
    munmap((void*)(address - PAGE), bytes + PAGE);
    return SUCCESS;
}
API cuMemHostAlloc(void** p, size_t bytes, unsigned) { *p = malloc(bytes); return *p ? SUCCESS : OUT_OF_MEMORY; }
API cuMemFreeHost(void* p) { free(p); return SUCCESS; }
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void*) {
    if (!is_here(to, bytes)) return INVALID_VALUE;
    memset((void*)to, value, bytes);
    return SUCCESS;
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void*) {
    if (!is_here(to, bytes) || !is_here(from, bytes)) return INVALID_VALUE;
    memmove((void*)to, (void*)from, bytes);
    return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void*) {
    if (!is_here(to, bytes)) return INVALID_VALUE;
    memcpy((void*)to, from, bytes);
    return SUCCESS;
}
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void*) {
    if (!is_here(from, bytes)) return INVALID_VALUE;
    memcpy(to, (void*)from, bytes);
    return SUCCESS;
}

// The image is a shared library; its header tells how long it is.
API cuModuleLoadData(void** module, const void* image) {
    const Elf64_Ehdr* header = (const Elf64_Ehdr*)image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return INVALID_IMAGE;
    size_t bytes = header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
    int file = memfd_create("kernels", 0);
    if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) return INVALID_IMAGE;
    std::string path = "/proc/self/fd/" + std::to_string(file);
    *module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!*module) fprintf(stderr, "emulated driver: %s\n", dlerror());
    return *module ? SUCCESS : INVALID_IMAGE;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
    void* run = dlsym(module, (std::string(name) + "__run").c_str());
    if (!run) return NOT_FOUND;
    *function = new Function{(void (*)(const unsigned*, unsigned, void**))run};
    return SUCCESS;
}
API cuFuncSetAttribute(void*, int, int) { return SUCCESS; }
API cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, void*, void** params, void**) {
    if (bx * by * bz == 0 || bx * by * bz > 1024) return INVALID_VALUE;
    const unsigned dims[6] = {gx, gy, gz, bx, by, bz};
    // Kernels keep their state in one place, whichever thread launches them.
    static std::mutex one;
    std::lock_guard<std::mutex> held(one);
    ((Function*)function)->run(dims, shared, params);
    return SUCCESS;
}
API cuGetErrorName(Result code, const char** text) {
    *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED";
    return SUCCESS;
}
API cuGetErrorString(Result, const char** text) { *text = "emulated driver"; return SUCCESS; }
