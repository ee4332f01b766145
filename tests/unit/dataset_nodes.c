/* A dataset over nodes: every sample made once, found ever after wherever it is, in the
 * library's order and in orders of others, by ranks and their forked children. Nodes are
 * those that the ranks' endpoint records name. */
#include "tests/support/dataset_fixture.h"

#include "io/dataset/dataset_internal.h"

#include <dirent.h>
#include <errno.h>

typedef struct shape {
	const char *name;
	int P, node[6];
} shape;

static const shape shapes[] = {
	{"2 nodes of 1", 2, {0, 1}},       {"3 nodes of 1", 3, {0, 1, 2}},
	{"2 nodes of 2", 4, {0, 0, 1, 1}}, {"2 nodes of 2, in turn", 4, {0, 1, 0, 1}},
	{"2 + 1", 3, {0, 0, 1}},           {"1 + 3 + 1", 5, {0, 1, 1, 1, 2}},
};

static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL};
static uint64_t samples_count;
static gradcomp_dataset_options extra;

static gradcomp_dataset *begin(gradcomp_job *job, dataset_result *v)
{
	gradcomp_dataset_options o = samples_options(samples_count);
	gradcomp_dataset *ds = NULL;
	o.workers = extra.workers;
	o.prefetch = extra.prefetch;
	o.memory = extra.memory ? extra.memory : o.memory;
	o.spill = extra.spill;
	v->wrong |= gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0;
	return ds;
}

static void end(gradcomp_dataset *ds, dataset_result *v)
{
	v->stats.struct_size = sizeof v->stats;
	gradcomp_dataset_get_stats(ds, &v->stats);
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 10;
}

static void in_order(gradcomp_job *job, int rank, process_board *b, void *room)
{
	dataset_result *v = room;
	gradcomp_dataset *ds = begin(job, v);
	(void)rank;
	(void)b;
	if (!ds)
		return;
	for (uint64_t e = 0; e < 3; e++)
		v->wrong |= samples_epoch(ds, e, 0, &v->error) << (e + 1);
	end(ds, v);
	v->wrong |= (v->stats.loaded + v->stats.local + v->stats.remote !=
	             3 * permutation_length(samples_count, (uint64_t)b->P, (uint64_t)rank))
	            << 5;
}

static void order_shape(const shape *s)
{
	static const uint64_t counts[] = {0, 1, 5, 1000};
	static const uint32_t pools[][2] = {{0, 0}, {0, 1}, {2, 8}};
	uint64_t remote = 0;
	int well = 1;
	processes_on(s->node);
	for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
		for (size_t w = 0; w < sizeof pools / sizeof pools[0]; w++) {
			samples_forget();
			samples_count = counts[k];
			extra = (gradcomp_dataset_options){.workers = pools[w][0], .prefetch = pools[w][1]};
			process_board *b = run_processes(s->P, settings, in_order, sizeof(dataset_result));
			int fine = all_well(b) && samples_each(all_samples->made, samples_count, 1) &&
			           samples_each(all_samples->seen, samples_count, 3);
			if (!fine)
				printf("# %d samples, %u workers, %u ahead\n", (int)samples_count, extra.workers,
				       extra.prefetch);
			well &= fine;
			for (int r = 0; r < s->P; r++)
				remote += ((dataset_result *)process_room(b, r))->stats.remote;
			end_processes(b);
		}
	ok(well && remote > 100, "%s: each made once over all nodes, right in each of 3 epochs (%d from another node)",
	   s->name, (int)remote);
}

static uint64_t sum_rounded(void)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < samples_count; i++)
		sum += sample_bytes(i) ? (sample_bytes(i) + 63) / 64 * 64 : 64;
	return sum;
}

/* Waits until values that were made for other nodes have come to them, when all nodes together hold everything. */
static int settled(gradcomp_job *job, gradcomp_dataset *ds, const int *node, int rank)
{
	gradcomp_error err;
	for (int tries = 0; tries < 3000; tries++) {
		gradcomp_dataset_stats st = {.struct_size = sizeof st};
		int64_t all;
		gradcomp_dataset_get_stats(ds, &st);
		all = 0;
		for (int r = 0; r < rank && node; r++)
			all |= node[r] == node[rank];
		all = all ? 0 : (int64_t)st.memory_used;
		if (gradcomp_allreduce(gradcomp_job_world(job), &all, 1, GRADCOMP_I64, GRADCOMP_SUM, &err))
			return 0;
		if ((uint64_t)all == sum_rounded())
			return 1;
		usleep(10000);
	}
	return 0;
}

static int pick(gradcomp_dataset *ds, uint64_t index, gradcomp_error *err)
{
	gradcomp_value_view v = {.struct_size = sizeof v};
	int wrong = gradcomp_dataset_get(ds, index, &v, err) || !sample_right(&v, index);
	atomic_fetch_add(&all_samples->seen[index], 1);
	gradcomp_dataset_release(ds, &v);
	return wrong;
}

static int others_order(gradcomp_dataset *ds, uint64_t epoch, uint64_t k, uint64_t n, gradcomp_error *err)
{
	uint64_t soon[16];
	int wrong = 0;
	for (uint64_t i = k; i < samples_count; i += 16 * n) {
		uint64_t many = 0;
		for (uint64_t j = i; j < samples_count && many < 16; j += n)
			soon[many++] = (j + epoch * 37) % samples_count;
		wrong |= gradcomp_dataset_expect(ds, soon, many, err) != 0;
		for (uint64_t j = 0; j < many; j++)
			wrong |= pick(ds, soon[j], err);
	}
	return wrong;
}

static void by_others(gradcomp_job *job, int rank, process_board *b, void *room)
{
	dataset_result *v = room;
	gradcomp_dataset *ds = begin(job, v);
	if (!ds)
		return;
	for (uint64_t e = 0; e < 3; e++) {
		v->wrong |= others_order(ds, e, (uint64_t)rank, (uint64_t)b->P, &v->error) << (e + 1);
		v->wrong |= !settled(job, ds, processes_nodes(), rank) << 8;
	}
	end(ds, v);
}

static void by_children(gradcomp_job *job, int rank, process_board *b, void *room)
{
	enum { CHILDREN = 2 };
	dataset_result *v = room;
	gradcomp_dataset *ds = begin(job, v);
	pid_t pid[CHILDREN];
	if (!ds)
		return;
	for (uint64_t e = 0; e < 3; e++) {
		fflush(NULL);
		for (int k = 0; k < CHILDREN; k++) {
			pid[k] = fork();
			if (!pid[k]) {
				gradcomp_error err = {0};
				int wrong = others_order(ds, e, (uint64_t)(rank * CHILDREN + k),
				                         (uint64_t)(b->P * CHILDREN), &err);
				if (wrong)
					printf("# a child: %s\n", err.text);
				fflush(stdout);
				_exit(wrong);
			}
		}
		for (int k = 0; k < CHILDREN; k++) {
			int status = 0;
			while (waitpid(pid[k], &status, 0) < 0 && errno == EINTR)
				;
			v->wrong |= (status != 0) << (e + 1);
		}
		v->wrong |= !settled(job, ds, processes_nodes(), rank) << 8;
	}
	end(ds, v);
}

static void other_shape(const shape *s, process_body *body, const char *who)
{
	samples_forget();
	processes_on(s->node);
	samples_count = 600;
	extra = (gradcomp_dataset_options){0};
	process_board *b = run_processes(s->P, settings, body, sizeof(dataset_result));
	ok(all_well(b) && samples_each(all_samples->made, samples_count, 1) &&
	           samples_each(all_samples->seen, samples_count, 3),
	   "%s, %s by get(): each made once, then with its owner, right in each of 3 epochs", s->name, who);
	end_processes(b);
}

typedef struct connections {
	dataset_result v;
	int created, one, all; /* descriptors more than before */
	long kib[3];           /* resident, at these times */
} connections;

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* When all ranks have come here, and what closes on its own has. */
static int more_descriptors(gradcomp_job *job, int before, int want, long *kib)
{
	gradcomp_error err;
	FILE *f;
	long pages = 0;
	int n = 0;
	gradcomp_barrier(gradcomp_job_world(job), &err);
	for (int tries = 0; (n = descriptors() - before) != want && want >= 0 && tries < 500; tries++)
		usleep(10000);
	f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%*d %ld", &pages) != 1)
		pages = 0;
	if (f)
		fclose(f);
	*kib = pages * (sysconf(_SC_PAGESIZE) / 1024);
	gradcomp_barrier(gradcomp_job_world(job), &err);
	return n;
}

/* Each rank wants a sample of the next one, and then of all. */
static void connect_ranks(gradcomp_job *job, int rank, process_board *b, void *room)
{
	connections *c = room;
	gradcomp_error err;
	gradcomp_barrier(gradcomp_job_world(job), &err);
	int before = descriptors();
	gradcomp_dataset *ds = begin(job, &c->v);
	if (!ds)
		return;
	/* The wake-up of the service and of its channel, the memory, and what the consistency checks use. */
	c->created = more_descriptors(job, before, -1, &c->kib[0]);
	before += c->created;
	for (int all = 0; all < 2; all++) {
		for (int next = 1; next < (all ? b->P : 2); next++)
			for (uint64_t i = 0; i < samples_count; i++) {
				sample_owner at;
				owner_of(ds, i, &at);
				if (at.node != (rank + next) % b->P) /* a node has one rank */
					continue;
				c->v.wrong |= pick(ds, i, &c->v.error) << 1;
				break;
			}
		*(all ? &c->all : &c->one) = more_descriptors(job, before, all ? b->P - 1 : 2, &c->kib[all + 1]);
	}
	end(ds, &c->v);
}

static void connect_on_need(int P)
{
	static int node[256];
	int most[3] = {0}, well = 1;
	long kib[3] = {0};
	for (int r = 0; r < P; r++)
		node[r] = r;
	processes_on(node);
	samples_forget();
	samples_count = 20 * (uint64_t)P < SAMPLES_MOST ? 20 * (uint64_t)P : SAMPLES_MOST;
	extra = (gradcomp_dataset_options){0};
	process_board *b = run_processes(P, settings, connect_ranks, sizeof(connections));
	ok(all_well(b), "%d nodes of 1: each rank has a sample of the next one, then of all", P);
	for (int r = 0; r < P; r++) {
		const connections *c = process_room(b, r);
		const int n[] = {c->created, c->one, c->all};
		well &= c->one == 2 && c->all == P - 1;
		for (int i = 0; i < 3; i++) {
			most[i] = n[i] > most[i] ? n[i] : most[i];
			kib[i] = c->kib[i] > kib[i] ? c->kib[i] : kib[i];
		}
	}
	ok(well && most[0] < 12,
	   "descriptors at first %d, with one sample %d more, with one of all %d (%ld, %ld, %ld KiB resident)", most[0],
	   most[1], most[2], kib[0], kib[1], kib[2]);
	end_processes(b);
}

int main(int argc, char **argv)
{
	settings[0] = plugin_path_setting();
	samples_begin();
	if (argc > 1) { /* nodes: connections and memory of as many */
		connect_on_need(atoi(argv[1]));
		return done_testing();
	}
	connect_on_need(16);
	for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
		order_shape(&shapes[k]);
		other_shape(&shapes[k], by_others, "ranks");
		other_shape(&shapes[k], by_children, "forked children");
	}
	return done_testing();
}
