/* Collectives by MPI: one line on stdin names a collective, its elements and how often it is called, and is answered
   with the seconds of one call (the slowest rank's). */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"};

static void call(int which, float *whole, float *recv, int count, int rank, int ranks) {
    int part = count / ranks;
    switch (which) {
    case 0:
        MPI_Allreduce(MPI_IN_PLACE, recv, count, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
        break;
    case 1:
        MPI_Allgather(whole + (size_t)rank * part, part, MPI_FLOAT, recv, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case 2:
        MPI_Reduce_scatter_block(whole, recv, part, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
        break;
    case 3:
        MPI_Bcast(rank == 0 ? whole : recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    default:
        MPI_Alltoall(whole, part, MPI_FLOAT, recv, part, MPI_FLOAT, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    int rank, ranks, held = 0;
    float *whole = NULL, *recv = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (;;) {
        int order[3] = {-1, 0, 0};
        if (rank == 0) {
            char line[128], name[64];
            if (fgets(line, sizeof line, stdin) && sscanf(line, "%63s %d %d", name, &order[1], &order[2]) == 3)
                for (int i = 0; i < 5; i++)
                    if (strcmp(name, names[i]) == 0)
                        order[0] = i;
        }
        /* MPI's own waits spin, which would disturb the others' rounds. */
        MPI_Request request;
        MPI_Ibcast(order, 3, MPI_INT, 0, MPI_COMM_WORLD, &request);
        for (int done = 0; !done; usleep(300))
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (order[0] < 0)
            break;
        if (order[1] != held) {
            held = order[1];
            whole = realloc(whole, held * sizeof(float));
            recv = realloc(recv, held * sizeof(float));
            for (int i = 0; i < held; i++)
                whole[i] = rank + 1, recv[i] = 0;
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime(), took, slowest;
        for (int i = 0; i < order[2]; i++)
            call(order[0], whole, recv, order[1], rank, ranks);
        took = (MPI_Wtime() - begin) / order[2];
        MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%.9f\n", slowest);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
