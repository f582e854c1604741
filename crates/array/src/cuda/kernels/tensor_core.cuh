// Shared-memory tiles, asynchronous copies and the warp-wide matrix product of sm_80 and later.
#pragma once
#include "prelude.cuh"

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Sixteen bytes to shared memory, or zeros where `there` is false.
DEVICE void copy16(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
DEVICE void copy4(u32 to, const void* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0));
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int PENDING> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING)); }

DEVICE void load_matrices(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
DEVICE void load_matrices_turned(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// c[16x8] += a[16x16] * b[16x8].
template <class T> DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> DEVICE void multiply<bf16>(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> DEVICE void multiply<f16>(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A tile of rows of WIDTH two-byte elements. The 16-byte pieces of a row change places with the row, so that eight
// rows of one column lie in different banks.
template <int WIDTH> struct Tile {
    static const int PIECES = WIDTH / 8;

    static DEVICE u32 at(u32 base, int row, int piece) { return base + (row * PIECES + (piece ^ (row & 7))) * 16; }

    // Rows `first .. first + ROWS` of a matrix with `stride` elements between rows; zeros from row `end` on.
    template <int ROWS, int THREADS, class T>
    static DEVICE void load(u32 base, const T* from, i64 stride, int first, int end) {
#pragma unroll
        for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
            int row = i / PIECES, piece = i % PIECES;
            bool there = first + row < end;
            const T* source = from + (there ? (i64)(first + row) * stride + piece * 8 : 0);
            copy16(at(base, row, piece), source, there);
        }
    }

    // Operand a: rows `row .. row + 16`, columns `16 k .. 16 k + 16`.
    static DEVICE void left(u32 (&r)[4], u32 base, int row, int k) {
        int lane = threadIdx.x % 32;
        load_matrices(r, at(base, row + lane % 16, 2 * k + lane / 16));
    }
    // Operand b, stored as [n][k]: columns n of the product are rows `row .. row + 16`; (r0, r1) and (r2, r3).
    static DEVICE void right(u32 (&r)[4], u32 base, int row, int k) {
        int lane = threadIdx.x % 32;
        load_matrices(r, at(base, row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
    }
    // Operand b, stored as [k][n]: rows `row .. row + 16`, columns of the product `8 piece .. 8 piece + 16`.
    static DEVICE void right_turned(u32 (&r)[4], u32 base, int row, int piece) {
        int lane = threadIdx.x % 32;
        load_matrices_turned(r, at(base, row + lane % 16, piece + lane / 16));
    }
};
