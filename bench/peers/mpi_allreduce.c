/* MPI_Allreduce of floats, timed as `gradcomp bench allreduce` times its own:
 *
 *     mpi_allreduce ITERATIONS BYTES...
 *
 * For every size the result is checked first; then ITERATIONS samples, each
 * after a barrier, of the slowest rank; rank 0 prints a JSON line with the
 * median. Sizes below 64 KiB are called 100 times a sample, back to back. Before
 * a size is measured it is run three times. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int check(float *buf, int count, int rank, int nranks)
{
	int wrong = 0;
	for (int i = 0; i < count; i++)
		buf[i] = (float)(rank + 1) * (float)(i % 97);
	MPI_Allreduce(MPI_IN_PLACE, buf, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		wrong |= buf[i] != (float)(nranks * (nranks + 1) / 2) * (float)(i % 97);
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	return wrong;
}

int main(int argc, char **argv)
{
	int rank, nranks, status = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nranks);
	int iterations = argc > 2 ? atoi(argv[1]) : 0;
	double *seconds = iterations > 0 ? calloc((size_t)iterations, sizeof *seconds) : NULL;
	if (!seconds) {
		fprintf(stderr, "usage: mpi_allreduce ITERATIONS BYTES...\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	for (int a = 2; a < argc && !status; a++) {
		long bytes = atol(argv[a]);
		int count = (int)(bytes / (long)sizeof(float)), calls = bytes < 65536 ? 100 : 1;
		float *buf = calloc((size_t)count + 1, sizeof *buf);
		if (!buf)
			MPI_Abort(MPI_COMM_WORLD, 1);
		status = check(buf, count, rank, nranks);
		for (int i = 0; i < count; i++)
			buf[i] = 0;
		for (int i = 0; i < 3; i++)
			MPI_Allreduce(MPI_IN_PLACE, buf, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < iterations; i++) {
			MPI_Barrier(MPI_COMM_WORLD);
			double start = MPI_Wtime();
			for (int c = 0; c < calls; c++)
				MPI_Allreduce(MPI_IN_PLACE, buf, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
			seconds[i] = (MPI_Wtime() - start) / calls;
		}
		MPI_Allreduce(MPI_IN_PLACE, seconds, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
		qsort(seconds, (size_t)iterations, sizeof *seconds, by_value);
		if (rank == 0)
			printf("{\"bytes\": %ld, \"seconds\": %.9f, \"ranks\": %d, \"correct\": %s}\n", bytes,
			       (seconds[iterations / 2] + seconds[(iterations - 1) / 2]) / 2, nranks, status ? "false" : "true");
		free(buf);
	}
	free(seconds);
	MPI_Finalize();
	return status;
}
