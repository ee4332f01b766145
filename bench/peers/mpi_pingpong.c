/* mpi_pingpong: what bench/transport measures, on MPI: half the round trip of
 * two ranks, and a shift of all ranks. One line a size. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS 9

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static const int sizes[] = {0, 1024, 16 << 10, 256 << 10, 1 << 20, 64 << 20};
	int rank, n;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &n);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		int bytes = sizes[s], times = bytes < 1 << 18 ? 2000 : bytes < 1 << 24 ? 100 : 4;
		int right = (rank + 1) % n, left = (rank + n - 1) % n;
		char *out = malloc((size_t)bytes + 1), *in = malloc((size_t)bytes + 1);
		double took[REPEATS];

		memset(out, 1, (size_t)bytes + 1);
		memset(in, 1, (size_t)bytes + 1);
		for (int shift = n != 2; shift < 2; shift++) {
			for (int k = -1; k < REPEATS; k++) {
				double begin = MPI_Wtime();

				for (int i = 0; i < times; i++) {
					if (shift) {
						MPI_Sendrecv(out, bytes, MPI_BYTE, right, 0, in, bytes, MPI_BYTE, left,
						             0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
						continue;
					}
					for (int half = 0; half < 2; half++)
						if (half == rank)
							MPI_Send(out, bytes, MPI_BYTE, !rank, 0, MPI_COMM_WORLD);
						else
							MPI_Recv(in, bytes, MPI_BYTE, !rank, 0, MPI_COMM_WORLD,
							         MPI_STATUS_IGNORE);
				}
				if (k >= 0)
					took[k] = (MPI_Wtime() - begin) / times / (shift ? 1 : 2);
			}
			qsort(took, REPEATS, sizeof *took, by_value);
			if (!rank)
				printf("%10d %10.2f us %10.0f MB/s%s\n", bytes, 1e6 * took[REPEATS / 2],
				       bytes / took[REPEATS / 2] / 1e6, shift ? " a rank, shift" : "");
			fflush(stdout);
		}
		free(out);
		free(in);
	}
	MPI_Finalize();
	return 0;
}
