// NCCL without devices, for ranks that are threads of one process: bytes are the host's, and go from rank to rank through boxes.
// It answers to the few functions that crates/cuda calls, under the name libnccl.so.2, never at once: communicators and groups are
// "in progress" until all ranks have come, as with a communicator that does not block.
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

typedef int Result;
enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
struct Id { char bytes[128]; };
struct Config { size_t size; unsigned magic, version; int blocking; };

#define API extern "C" __attribute__((visibility("default")))

struct World {
    int size = 0, here = 0, gone = 0;
    // By kind of call, sender and receiver.
    std::map<std::tuple<int, int, int>, std::deque<std::vector<char>>> boxes;
};
struct Receive { int kind, from; char* to; size_t bytes; };
struct Comm { unsigned long id; int rank, size; std::deque<Receive> awaited; bool ending = false; };
struct Step { Comm* comm; bool sends; int kind, peer; const char* from; char* to; size_t bytes; };

static std::mutex one;
static std::map<unsigned long, World> worlds;
static unsigned long last_id = 0;
static thread_local int depth = 0;
static thread_local std::vector<Step> steps;

API Result ncclGetVersion(int* version) { *version = 22809; return SUCCESS; }
API const char* ncclGetErrorString(Result) { return "emulated NCCL"; }
API const char* ncclGetLastError(Comm*) { return ""; }
API Result ncclGetUniqueId(Id* id) {
    std::lock_guard<std::mutex> held(one);
    memset(id, 0, sizeof *id);
    unsigned long number = ++last_id;
    memcpy(id->bytes, &number, sizeof number);
    return SUCCESS;
}
API Result ncclCommInitRankConfig(Comm** comm, int size, Id id, int rank, Config* config) {
    if (config->magic != 0xcafebeef || config->version < 21400 || config->size < sizeof(Config) || config->blocking) return INVALID_ARGUMENT;
    unsigned long number;
    memcpy(&number, id.bytes, sizeof number);
    std::lock_guard<std::mutex> held(one);
    if (number == 0 || number > last_id || rank < 0 || rank >= size) return INVALID_ARGUMENT;
    World& world = worlds[number];
    if (world.size && world.size != size) return INVALID_USAGE;
    world.size = size;
    world.here++;
    *comm = new Comm{number, rank, size};
    return IN_PROGRESS;
}
static Result progress(Comm* comm) {
    World& world = worlds[comm->id];
    if (world.here < world.size) return IN_PROGRESS;
    while (!comm->awaited.empty()) {
        Receive& next = comm->awaited.front();
        auto& box = world.boxes[{next.kind, next.from, comm->rank}];
        if (box.empty()) return IN_PROGRESS;
        if (box.front().size() != next.bytes) return INVALID_USAGE;
        memcpy(next.to, box.front().data(), next.bytes);
        box.pop_front();
        comm->awaited.pop_front();
    }
    return comm->ending && world.gone < world.size ? IN_PROGRESS : SUCCESS;
}
API Result ncclCommGetAsyncError(Comm* comm, Result* state) {
    std::lock_guard<std::mutex> held(one);
    *state = progress(comm);
    return SUCCESS;
}
API Result ncclCommFinalize(Comm* comm) {
    std::lock_guard<std::mutex> held(one);
    comm->ending = true;
    worlds[comm->id].gone++;
    return IN_PROGRESS;
}
API Result ncclCommDestroy(Comm* comm) { delete comm; return SUCCESS; }
API Result ncclCommAbort(Comm* comm) { delete comm; return SUCCESS; }
API Result ncclGroupStart() { depth++; return SUCCESS; }
API Result ncclGroupEnd() {
    if (--depth > 0) return SUCCESS;
    std::lock_guard<std::mutex> held(one);
    for (const Step& step : steps) {
        if (step.sends) worlds[step.comm->id].boxes[{step.kind, step.comm->rank, step.peer}].emplace_back(step.from, step.from + step.bytes);
        else step.comm->awaited.push_back({step.kind, step.peer, step.to, step.bytes});
    }
    steps.clear();
    return IN_PROGRESS;
}
static Result add(const Step& step) {
    if (depth == 0 || step.peer < 0 || step.peer >= step.comm->size || step.bytes == 0) return INVALID_ARGUMENT;
    steps.push_back(step);
    return SUCCESS;
}
API Result ncclSend(const void* from, size_t bytes, int type, int peer, Comm* comm, void*) {
    return type == 1 ? add({comm, true, 0, peer, (const char*)from, nullptr, bytes}) : INVALID_ARGUMENT;
}
API Result ncclRecv(void* to, size_t bytes, int type, int peer, Comm* comm, void*) {
    return type == 1 ? add({comm, false, 0, peer, nullptr, (char*)to, bytes}) : INVALID_ARGUMENT;
}
API Result ncclAllGather(const void* from, void* to, size_t bytes, int type, Comm* comm, void*) {
    for (int peer = 0; type == 1 && peer < comm->size; peer++) {
        Result sent = add({comm, true, 1, peer, (const char*)from, nullptr, bytes});
        Result got = add({comm, false, 1, peer, nullptr, (char*)to + peer * bytes, bytes});
        if (sent || got) return INVALID_ARGUMENT;
    }
    return type == 1 ? SUCCESS : INVALID_ARGUMENT;
}
API Result ncclBroadcast(const void* from, void* to, size_t bytes, int type, int root, Comm* comm, void*) {
    if (type != 1) return INVALID_ARGUMENT;
    if (root != comm->rank) return add({comm, false, 2, root, nullptr, (char*)to, bytes});
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer != root && add({comm, true, 2, peer, (const char*)from, nullptr, bytes})) return INVALID_ARGUMENT;
    }
    return SUCCESS;
}
