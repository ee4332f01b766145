/* Several communicators of one device: ranks that open them on two threads, in another order on every rank; and what
 * goes on at the same time, on streams that are late in another order on every rank, or behind callbacks that take
 * their time. The fake's device does one at a time until its peers have come. */
#include "tests/fake/gpu_model.h"

#include "config/spec.h"
#include "plugin/plugin_host.h"
#include "plugin/spec_table.h"

__attribute__((weak)) extern void fake_cuda_hold(cudaStream_t s, int on);

enum { RANKS = 2, LATE_MS = 150 };

static int told(int rank, gradcomp_status st, const gradcomp_error *err)
{
	if (st)
		printf("# rank %d: %s\n", rank, err->text);
	return st != 0;
}

static void doze(int ms)
{
	usleep((useconds_t)ms * 1000);
}

/* An instance of a collective that a thread opens, late, by its first call on device memory: one of no numbers. */
typedef struct opener {
	const struct gradcomp_collective_v1 *c;
	void *on, *memory;
	int late;
	gradcomp_status st;
	gradcomp_error err;
	double came, over;
} opener;

static void *open_it(void *arg)
{
	opener *o = arg;
	doze(o->late);
	o->came = process_clock();
	o->st = o->c->allreduce(o->on, o->memory, 0, GRADCOMP_F32, GRADCOMP_SUM, 1.0, &o->err);
	o->over = process_clock();
	return NULL;
}

static void opens(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	const char *spec_text = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	const gradcomp_links *links[2];
	opener o[2] = {{0}};
	pthread_t thread[2];
	gradcomp_host host;
	gradcomp_error err = {0};
	cudaStream_t queue;
	config *cf;
	const plugin *p;
	spec of;
	void *memory;
	(void)P;
	plugin_host(&host, &quiet);
	gradcomp_status st = config_load(NULL, &cf, &err);
	if (!st)
		st = spec_resolve(cf, GRADCOMP_KIND_COLLECTIVE, spec_text, &p, &of, &err);
	cuda_must(cudaMalloc(&memory, 64), "memory");
	cuda_must(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "a stream");
	for (int k = 0; !st && k < 2; k++) {
		o[k] = (opener){.c = p->collective, .memory = memory, .late = (rank + k) % 2 * LATE_MS};
		st = gradcomp_links_open(w, &links[k], &err);
		if (!st)
			st = o[k].c->create(&host, of.values, links[k], &o[k].on, &err);
		if (!st)
			st = o[k].c->set_queue(o[k].on, queue, &err);
	}
	if (told(rank, st, &err)) {
		out->failed = 1;
		return;
	}
	for (int k = 0; k < 2; k++)
		pthread_create(&thread[k], NULL, open_it, &o[k]);
	for (int k = 0; k < 2; k++) {
		pthread_join(thread[k], NULL);
		out->failed |= told(rank, o[k].st, &o[k].err);
		/* Neither waits for the other. */
		out->number[k] = o[k].over - o[k].came;
	}
	snprintf(out->text, sizeof out->text, "%s", o[o[0].st == GRADCOMP_OK].err.text);
	for (int k = 0; k < 2; k++) {
		o[k].c->destroy(o[k].on);
		gradcomp_links_close(w, links[k]);
	}
	spec_clear(&of);
	config_free(cf);
	cudaFree(memory);
	cudaStreamDestroy(queue);
}

static void try(process_body *body, const char *what, const char *arg)
{
	static const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	const outcome *o = run_processes(RANKS, 30, settings, body, (void *)(uintptr_t)arg);
	int failed = 0;
	for (int r = 0; r < RANKS; r++)
		failed |= o[r].failed;
	ok(!failed, "%s, %s", arg, what);
	for (int r = 0; failed && r < RANKS; r++)
		printf("# rank %d: failed %d \"%s\"\n", r, o[r].failed, o[r].text);
}

int main(void)
{
	test_seed_value = 3;
	try(opens, "two instances are opened on two threads, in another order on every rank", "nccl:timeout=5");
	try(opens, "two instances are opened on two threads, in another order on every rank",
	    "hier:ranks_per_node=1,timeout=5");
	return done_testing();
}
