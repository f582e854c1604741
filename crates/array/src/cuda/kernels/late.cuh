// Reporting a bad value: position and value into the launch's slot, the lowest position first.
//
// A slot is four words, all ones when unused: a lock, position, value. The caller does nothing else with the value.
#pragma once
#include "number.cuh"

DEVICE void report(u64* slot, u64 position, i64 value) {
    volatile u64* words = slot;
    u32* lock = (u32*)slot;
    for (bool done = position >= words[1]; !done;) {
        if (atomicCAS(lock, 0xffffffffu, 0u) == 0xffffffffu) {
            __threadfence();
            if (position < words[1]) {
                words[1] = position;
                words[2] = (u64)value;
            }
            __threadfence();
            atomicExch(lock, 0xffffffffu);
            done = true;
        }
    }
}
