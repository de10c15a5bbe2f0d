/* allreduce.c -- MPI_Allreduce, in place, f32, for comparison with bench/collectives: the same
 * sizes, the same median.
 *
 *     mpirun -n 2 build/release/bench/mpi_allreduce */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of `times` calls, in microseconds. */
static double measure(float *data, int count, int times)
{
    double *took = malloc((size_t)times * sizeof *took);
    if (!took) abort();
    for (int i = -2; i < times; i++) { /* two to warm up */
        for (int k = 0; k < count; k++) data[k] = 1;
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0) took[i] = 1e6 * (MPI_Wtime() - start);
    }
    qsort(took, (size_t)times, sizeof *took, compare);
    const double median = took[times / 2];
    free(took);
    return median;
}

int main(int argc, char **argv)
{
    static const int bytes[] = {64 << 20, 4 << 20, 256 << 10, 4 << 10, 8};
    static const int times[] = {11, 51, 201, 1001, 1001};
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *data = malloc((size_t)bytes[0]);
    if (!data) abort();
    if (rank == 0)
        printf("MPI_Allreduce, f32, in place; median us\nranks       64 MiB       4 MiB     256 KiB"
               "       4 KiB         8 B\n%-2d",
               ranks);
    for (int i = 0; i < 5; i++) {
        const double us = measure(data, bytes[i] / 4, times[i]);
        if (rank == 0) printf("%12.2f", us);
    }
    if (rank == 0) printf("\n");
    free(data);
    MPI_Finalize();
    return 0;
}
