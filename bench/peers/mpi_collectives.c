/* MPI's collectives on floats, timed as `gradcomp bench collectives` times its own:
 *
 *     mpi_collectives SECONDS PRIMITIVE:BYTES...
 *
 * PRIMITIVE is all-reduce, reduce-scatter, reduce-scatter-block or all-gather; BYTES
 * those of the whole vector; with :any behind them the result may be another. For every case it is checked first; then, for
 * about SECONDS but at least three times, a sample after a barrier of the slowest
 * rank; rank 0 prints a JSON line with the median. What a rank gives is written before every
 * sample, as it is in training. Vectors below 64 KiB are sent up to
 * 100 times a sample, back to back. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 65536, SMALL_CALLS = 100, FEWEST = 3, MOST = 20 };
enum { ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, ALLGATHER, PRIMITIVES };
static const char *const names[PRIMITIVES] = {"all-reduce", "reduce-scatter", "reduce-scatter-block", "all-gather"};

static int rank, nranks, what, count, *counts, *begin;
static float *x, *out;

static int by_value(const void *a, const void *b)
{
	double p = *(const double *)a, q = *(const double *)b;
	return (p > q) - (p < q);
}

static void call(void)
{
	if (what == ALLREDUCE)
		MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	else if (what == REDUCE_SCATTER)
		MPI_Reduce_scatter(x, out, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	else if (what == REDUCE_SCATTER_BLOCK)
		MPI_Reduce_scatter_block(x, out, counts[0], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	else
		MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, counts[0], MPI_FLOAT, MPI_COMM_WORLD);
}

static float number(int r, int i)
{
	return (float)(r + 1) * (float)(i % 97);
}

static int wrong(void)
{
	int bad = 0;
	for (int i = 0; i < count; i++)
		x[i] = number(rank, i);
	call();
	for (int i = 0; i < count; i++) {
		int mine = i >= begin[rank] && i < begin[rank] + counts[rank], owner = nranks - 1;
		while (begin[owner] > i)
			owner--;
		float sum = (float)(nranks * (nranks + 1) / 2) * (float)(i % 97);
		if (what == ALLREDUCE)
			bad |= x[i] != sum;
		else if (what == ALLGATHER)
			bad |= x[i] != number(owner, i);
		else if (mine)
			bad |= out[i - begin[rank]] != sum;
	}
	MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	return bad;
}

static double sample(int calls)
{
	int from = what == ALLGATHER ? begin[rank] : 0, n = what == ALLGATHER ? counts[rank] : count;
	memset(x + from, 0, (size_t)n * sizeof *x);
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	for (int c = 0; c < calls; c++)
		call();
	double t = (MPI_Wtime() - start) / calls;
	MPI_Allreduce(MPI_IN_PLACE, &t, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return t;
}

static int measure(long bytes, double budget)
{
	double seconds[MOST];
	int bad, calls = bytes < SMALL ? SMALL_CALLS : 1, n;
	count = (int)(bytes / (long)sizeof(float));
	x = calloc((size_t)count + 1, sizeof *x);
	out = calloc((size_t)count + 1, sizeof *out);
	if (!x || !out)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int r = 0, at = 0; r < nranks; at += counts[r++]) {
		counts[r] = count / nranks + (what < REDUCE_SCATTER_BLOCK && r < count % nranks);
		begin[r] = at;
	}
	/* MPI's blocks do not take a count that the ranks divide unevenly. */
	if (what >= REDUCE_SCATTER_BLOCK)
		count = counts[0] * nranks;
	bad = wrong();
	double once = sample(1);
	if (once * calls * FEWEST > budget)
		calls = budget / FEWEST / once > 1 ? (int)(budget / FEWEST / once) : 1;
	n = budget / (once * calls) < MOST ? (int)(budget / (once * calls)) : MOST;
	n = n < FEWEST ? FEWEST : n;
	for (int i = n > FEWEST ? -1 : 0; i < n; i++) {
		double t = sample(calls);
		if (i >= 0)
			seconds[i] = t;
	}
	qsort(seconds, (size_t)n, sizeof *seconds, by_value);
	if (rank == 0)
		printf("{\"primitive\": \"%s\", \"bytes\": %ld, \"seconds\": %.9f, \"ranks\": %d, \"correct\": %s}\n",
		       names[what], bytes, (seconds[n / 2] + seconds[(n - 1) / 2]) / 2, nranks, bad ? "false" : "true");
	fflush(stdout);
	free(x);
	free(out);
	return bad;
}

int main(int argc, char **argv)
{
	int status = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nranks);
	counts = calloc((size_t)nranks, sizeof *counts);
	begin = calloc((size_t)nranks, sizeof *begin);
	for (int a = 2; counts && begin && a < argc && !status; a++) {
		size_t n = strcspn(argv[a], ":");
		for (what = 0; what < PRIMITIVES && (strlen(names[what]) != n || strncmp(names[what], argv[a], n));
		     what++)
			;
		if (what == PRIMITIVES || !argv[a][n]) {
			fprintf(stderr, "mpi_collectives: '%s' is not PRIMITIVE:BYTES\n", argv[a]);
			MPI_Abort(MPI_COMM_WORLD, 2);
		}
		status = measure(atol(argv[a] + n + 1), atof(argv[1])) && !strstr(argv[a], ":any");
	}
	free(counts);
	free(begin);
	MPI_Finalize();
	return status;
}
