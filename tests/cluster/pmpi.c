/* An MPI program that knows nothing of gradcomp (pmpi.t).
 *   pmpi cases [threads]   collectives of all kinds; rank 0 prints for each of them `exact`, `within` (what 8 bits for
 *                          the largest number may lose) or `WRONG`, and UNEQUAL where ranks should have the same bits
 *   pmpi kill              rank 1 kills itself between two all-reduces; the others print what MPI says of that
 * Numbers are whole and small, so that any order of additions gives the same sum. */
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 100003, LARGEST = 50, LONG_BLOCK = 720000 };

static int rank, nranks;
static float *x, *y;
static const void *on_device;

/* Stands in for a GPU's driver, which says what is in the GPU's memory. */
int cuPointerGetAttribute(unsigned *type, int what, unsigned long long p);
int cuPointerGetAttribute(unsigned *type, int what, unsigned long long p)
{
	*type = 2;
	return what != 2 || p != (unsigned long long)on_device;
}

/* Gives what rank r has for number i. */
static float number(int r, long i)
{
	return (float)((i * 7 + r * 13) % (2 * LARGEST + 1) - LARGEST);
}

static float sum(int ranks, long i)
{
	float s = 0;
	for (int r = 0; r < ranks; r++)
		s += number(r, i);
	return s;
}

static void give(float *p, long n)
{
	for (long i = 0; i < n; i++)
		p[i] = number(rank, i);
}

/* FNV-1a. */
static unsigned long bits(const float *p, long n)
{
	unsigned long h = 14695981039346656037u;
	for (long i = 0; i < n * 4; i++)
		h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211u;
	return h & ~0ul >> 1;
}

/* codes: how many of them add up, each of numbers up to `ranks` * LARGEST. hash: of what is the same on all ranks; 0:
 * nothing is. */
static void tell(const char *name, double error, int codes, int ranks, unsigned long hash, MPI_Comm comm)
{
	unsigned long ends[2] = {hash, ~hash & ~0ul >> 1};
	int me;
	double bound = codes * ranks * LARGEST / 254.0 * 1.001;
	PMPI_Comm_rank(comm, &me);
	PMPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_DOUBLE, MPI_MAX, comm);
	PMPI_Allreduce(MPI_IN_PLACE, ends, 2, MPI_UNSIGNED_LONG, MPI_MAX, comm);
	if (me == 0)
		printf("%s: %s%s\n", name,
		       error == 0       ? "exact"
		       : error <= bound ? "within"
		                        : "WRONG",
		       ends[0] == (~ends[1] & ~0ul >> 1) ? "" : " UNEQUAL");
}

static double error_of(float got, float want)
{
	return isnan(got) ? INFINITY : fabs((double)got - want);
}

static void told_sum(const char *name, const float *got, int n, MPI_Comm comm)
{
	double e = 0;
	for (long i = 0; i < n; i++)
		e = fmax(e, error_of(got[i], sum(nranks, i)));
	tell(name, e, nranks, nranks, bits(got, n), comm);
}

static void told_gather(const char *name, const float *got, int n)
{
	double e = 0;
	for (int r = 0; r < nranks; r++)
		for (long i = 0; i < n; i++)
			e = fmax(e, error_of(got[r * (long)n + i], number(r, i)));
	tell(name, e, 1, 1, bits(got, (long)n * nranks), MPI_COMM_WORLD);
}

static void told_scatter(const char *name, const float *got, long begin, long n)
{
	double e = 0;
	for (long i = 0; i < n; i++)
		e = fmax(e, error_of(got[i], sum(nranks, begin + i)));
	tell(name, e, nranks - 1, nranks, 0, MPI_COMM_WORLD);
}

static void sums(void)
{
	give(x, N);
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_sum("allreduce", y, N, MPI_COMM_WORLD);
	give(y, N);
	MPI_Allreduce(MPI_IN_PLACE, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_sum("allreduce in place", y, N, MPI_COMM_WORLD);
	MPI_Allreduce(x, y, N, MPI_REAL, MPI_SUM, MPI_COMM_WORLD);
	told_sum("allreduce of Fortran's numbers", y, N, MPI_COMM_WORLD);
	MPI_Allreduce(x, y, 1000, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_sum("allreduce of a few", y, 1000, MPI_COMM_WORLD);
	MPI_Allreduce(x, y, 0, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	on_device = rank == 1 ? y : NULL;
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	on_device = NULL;
	told_sum("allreduce in the memory of one rank's GPU", y, N, MPI_COMM_WORLD);
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF);
	tell("allreduce of one rank", memcmp(x, y, N * sizeof *x), 0, 1, 0, MPI_COMM_WORLD);
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
	double e = 0, *d = malloc(N * sizeof *d);
	for (long i = 0; i < N; i++) {
		float most = number(0, i);
		for (int r = 1; r < nranks; r++)
			most = fmaxf(most, number(r, i));
		e = fmax(e, error_of(y[i], most));
		d[i] = x[i];
	}
	tell("allreduce of maxima", e, 0, 1, bits(y, N), MPI_COMM_WORLD);
	MPI_Allreduce(MPI_IN_PLACE, d, N, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	e = 0;
	for (long i = 0; i < N; i++)
		e = fmax(e, fabs(d[i] - sum(nranks, i)));
	free(d);
	tell("allreduce of doubles", e, 0, 1, 0, MPI_COMM_WORLD);
}

static void sums_later(void)
{
	MPI_Request two[2];
	MPI_Status ended[2];
	float *z = malloc(2 * N * sizeof *z);
	give(x, N);
	give(z + N, N);
	MPI_Iallreduce(x, z, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &two[0]);
	MPI_Iallreduce(MPI_IN_PLACE, z + N, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &two[1]);
	MPI_Waitall(2, two, ended);
	told_sum("iallreduce", z, N, MPI_COMM_WORLD);
	told_sum("iallreduce in place", z + N, N, MPI_COMM_WORLD);
	give(z + N, N);
	on_device = rank == 1 ? z : NULL;
	MPI_Iallreduce(x, z, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &two[0]);
	MPI_Wait(&two[0], ended);
	told_sum("iallreduce into the memory of one rank's GPU", z, N, MPI_COMM_WORLD);
	on_device = rank == 0 ? z + N : rank == 1 ? x : NULL;
	MPI_Iallreduce(rank == 1 ? x : MPI_IN_PLACE, rank == 1 ? z : z + N, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
	               &two[0]);
	MPI_Wait(&two[0], ended);
	on_device = NULL;
	told_sum("iallreduce out of the memory of two", rank == 1 ? z : z + N, N, MPI_COMM_WORLD);
	free(z);
}

static void gathers(void)
{
	MPI_Datatype pair;
	give(x, N);
	MPI_Allgather(x, N, MPI_FLOAT, y, N, MPI_FLOAT, MPI_COMM_WORLD);
	told_gather("allgather", y, N);
	memset(y, 0, (size_t)N * (size_t)nranks * sizeof *y);
	give(y + (long)rank * N, N);
	MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, y, N, MPI_FLOAT, MPI_COMM_WORLD);
	told_gather("allgather in place", y, N);
	MPI_Type_contiguous(2, MPI_FLOAT, &pair);
	MPI_Type_commit(&pair);
	if (rank == 0)
		MPI_Allgather(x, N / 2, pair, y, N / 2, pair, MPI_COMM_WORLD);
	else
		MPI_Allgather(x, N / 2 * 2, MPI_FLOAT, y, N / 2 * 2, MPI_FLOAT, MPI_COMM_WORLD);
	told_gather("allgather of two types", y, N / 2 * 2);
	MPI_Allgather(x, N, MPI_INT, y, N, MPI_INT, MPI_COMM_WORLD);
	told_gather("allgather of integers", y, N);
	MPI_Type_free(&pair);
}

static void scatters(void)
{
	int counts[64], begin = 0, all = 0;
	for (int r = 0; r < nranks; r++)
		all += counts[r] = r == 1 ? 0 : 20000 + 777 * r;
	for (int r = 0; r < rank; r++)
		begin += counts[r];
	give(x, all);
	MPI_Reduce_scatter(x, y, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_scatter("reduce_scatter", y, begin, counts[rank]);
	MPI_Reduce_scatter(MPI_IN_PLACE, x, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_scatter("reduce_scatter in place", x, begin, counts[rank]);
	/* In place on the ranks that get something: long enough for pieces, where all have workspace. */
	begin = LONG_BLOCK * nranks / (nranks - 1);
	for (int r = 0; r < nranks; r++)
		counts[r] = r == 1 ? 0 : begin;
	begin *= rank > 1 ? rank - 1 : rank;
	give(x, (long)LONG_BLOCK * nranks);
	MPI_Reduce_scatter(rank == 1 ? x : MPI_IN_PLACE, rank == 1 ? y : x, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_scatter("reduce_scatter in place on some", rank == 1 ? y : x, begin, counts[rank]);
	give(x, (long)LONG_BLOCK * nranks);
	MPI_Reduce_scatter_block(x, y, LONG_BLOCK, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_scatter("reduce_scatter_block", y, (long)rank * LONG_BLOCK, LONG_BLOCK);
	double e = 0;
	for (long i = 0; i < (long)LONG_BLOCK * nranks; i++)
		e = fmax(e, error_of(x[i], number(rank, i)));
	tell("... which leaves what was given", e, 0, 1, 0, MPI_COMM_WORLD);
	MPI_Reduce_scatter_block(MPI_IN_PLACE, x, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	told_scatter("reduce_scatter_block in place", x, (long)rank * N, N);
}

static void communicators(void)
{
	MPI_Comm other, inter, half;
	give(x, N);
	for (int i = 0; i < 3; i++) {
		MPI_Comm_dup(MPI_COMM_WORLD, &other);
		MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, other);
		MPI_Comm_free(&other);
	}
	told_sum("allreduce of a copy", y, N, MPI_COMM_WORLD);
	/* Without rank 0, the last one first; the name is rank 0's there. */
	MPI_Comm_split(MPI_COMM_WORLD, rank == 0, -rank, &half);
	if (rank == nranks - 1)
		MPI_Comm_set_name(half, "weights");
	if (rank) {
		MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, half);
		double e = 0;
		for (long i = 0; i < N; i++)
			e = fmax(e, error_of(y[i], sum(nranks, i) - number(0, i)));
		tell("allreduce of some", e, nranks, nranks, bits(y, N), half);
	}
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank ? 0 : nranks - 1, 1, &inter);
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, inter);
	double e = 0;
	for (long i = 0; i < N; i++)
		e = fmax(e, error_of(y[i], rank ? number(0, i) : sum(nranks, i) - number(0, i)));
	tell("allreduce of an intercommunicator", e, 0, 1, 0, MPI_COMM_WORLD);
	MPI_Comm_free(&inter);
	MPI_Comm_free(&half);
}

/* Rank 1 begins its all-reduce when it has a message that rank 0 has still to send while it is in its own. */
static void messages(void)
{
	enum { LONG = 1 << 20 };
	char *message = calloc(1, LONG);
	MPI_Request sent = MPI_REQUEST_NULL;
	give(x, N);
	if (rank == 0)
		MPI_Isend(message, LONG, MPI_BYTE, 1, 7, MPI_COMM_WORLD, &sent);
	if (rank == 1)
		MPI_Recv(message, LONG, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Wait(&sent, MPI_STATUS_IGNORE);
	told_sum("allreduce behind a message", y, N, MPI_COMM_WORLD);
	free(message);
}

typedef struct errand {
	MPI_Comm comm;
	float *out;
} errand;

static void *reduce(void *arg)
{
	errand *e = arg;
	for (int i = 0; i < 3; i++)
		MPI_Allreduce(x, e->out, N, MPI_FLOAT, MPI_SUM, e->comm);
	return NULL;
}

/* Two copies of a communicator are met in another order on every other rank. */
static void threads(void)
{
	errand two[2];
	pthread_t other;
	give(x, N);
	for (int i = 0; i < 2; i++) {
		MPI_Comm_dup(MPI_COMM_WORLD, &two[i].comm);
		two[i].out = malloc(N * sizeof(float));
	}
	pthread_create(&other, NULL, reduce, &two[rank % 2]);
	usleep(20000);
	reduce(&two[1 - rank % 2]);
	pthread_join(other, NULL);
	for (int i = 0; i < 2; i++) {
		told_sum(i ? "allreduce by another" : "allreduce by a thread", two[i].out, N, MPI_COMM_WORLD);
		MPI_Comm_free(&two[i].comm);
		free(two[i].out);
	}
}

static int kill_one(void)
{
	char text[MPI_MAX_ERROR_STRING];
	int rc = 0, length;
	give(x, N);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 1)
		raise(SIGKILL);
	while (!rc)
		rc = MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Error_string(rc, text, &length);
	printf("rank %d was told: %s\n", rank, text);
	fflush(stdout);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
	MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	return 3;
}

int main(int argc, char **argv)
{
	int level = MPI_THREAD_SINGLE;
	if (argc > 2)
		MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
	else
		MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nranks);
	x = calloc((size_t)LONG_BLOCK * (size_t)nranks, sizeof *x);
	y = calloc((size_t)LONG_BLOCK, sizeof *y);
	if (argc > 1 && !strcmp(argv[1], "kill"))
		return kill_one();
	sums();
	sums_later();
	gathers();
	scatters();
	communicators();
	messages();
	if (level == MPI_THREAD_MULTIPLE)
		threads();
	MPI_Finalize();
	free(x);
	free(y);
	return 0;
}
