/* A rank that has the secret and lies: it takes part in steps of a reducer like the others, but what
 * it sends is changed, cut, lengthened, sent twice, sent to another rank or not sent, under every
 * collective and kind of payload, with and without encryption. The others end with a result or an
 * error, in time; sanitizers see the rest. GRADCOMP_FUZZ_SEED and GRADCOMP_FUZZ_ROUNDS as elsewhere.
 *
 *     collectives [ALLOW]      transport.allow of all jobs, not encrypted (verbs cannot); without it tcp and shm */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>

#include "tests/fuzz/mutate.h"
#include "tests/support/pace.h"
#include "tests/support/thread_ranks.h"

#include "base/clock.h"
#include "transport/core/transport.h"

enum { P = 3, LIAR = 1, ROWS = 48, COLUMNS = 32, STEPS = 3, CHANNELS = 16 };
enum lie { CHANGE, SHORTEN, LENGTHEN, REPEAT, ASTRAY, OMIT, LIES };

static const struct {
	const char *compressor, *collective; /* NULL: the default */
} pairs[] = {{"none", "ring"},
             {"none", "rhd"},
             {"none", "tree"},
             {"none", "direct"},
             {"cast", "auto"},
             {"topk:density=0.05", NULL},
             {"topk:density=0.05", "sparse"},
             {"gtopk:density=0.05", NULL},
             {"randomk", NULL},
             {"powersgd:rank=2", NULL},
             {"block:bits=4", "ring"},
             {"block:bits=8", "direct"},
             {"qsgd", NULL},
             {"terngrad", NULL},
             {"signsgd", NULL},
             {"onebit", "direct"},
             {"dgc:density=0.05", NULL},
             {"threshold", NULL},
             {"mstopk:density=0.05", NULL},
             {"acpsgd:rank=2", NULL},
             {"blocktopk:density=0.05,block=32", NULL},
             {"fp8", "ring"},
             {"natural", "direct"},
             {"demo:chunk=16", NULL},
             {"dion:rank=2", NULL}};
enum { PAIRS = sizeof pairs / sizeof pairs[0] };

/* A lie has put these bytes on a link, which reads them later. */
typedef struct kept {
	struct kept *next;
	gradcomp_request request;
	uint8_t bytes[];
} kept;

typedef struct lying_links {
	gradcomp_links api;
	const gradcomp_links *real;
	const channel *of;
} lying_links;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static lying_links lying[CHANNELS];
static int nlying;
static kept *all_kept;
static bool awake; /* lies are told now */
static uint32_t one_in;
static enum lie kind;
static unsigned long told;

#define OMITTED 0x6f6d697474656421u

static kept *keep(size_t bytes)
{
	kept *k = calloc(1, sizeof *k + bytes + 8);
	if (!k)
		exit(1);
	k->next = all_kept;
	all_kept = k;
	return k;
}

static gradcomp_status lie_send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                                gradcomp_error *err)
{
	const gradcomp_links *real = ((lying_links *)ctx)->real;
	size_t n = bytes;
	kept *k = NULL;
	pthread_mutex_lock(&lock);
	bool lies = awake && !draw(one_in);
	if (lies) {
		told++;
		k = keep(bytes + 64);
		memcpy(k->bytes, buf, bytes);
		if (kind == CHANGE)
			mutate(k->bytes, bytes);
		else if (kind == SHORTEN)
			n = bytes ? bytes - 1 - draw((uint32_t)bytes) : 0;
		else if (kind == LENGTHEN)
			n = bytes + 1 + draw(63);
		else if (kind == ASTRAY)
			peer = (peer + 1) % P == real->rank ? (peer + 2) % P : (peer + 1) % P;
	}
	pthread_mutex_unlock(&lock);
	if (!lies)
		return real->send(real->ctx, peer, buf, bytes, req, err);
	if (kind == OMIT) {
		req->opaque[0] = req->opaque[1] = OMITTED;
		return GRADCOMP_OK;
	}
	gradcomp_status st = real->send(real->ctx, peer, k->bytes, n, req, err);
	if (!st && kind == REPEAT)
		st = real->send(real->ctx, peer, k->bytes, n, &k->request, err);
	return st;
}

static gradcomp_status lie_recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
                                gradcomp_error *err)
{
	const gradcomp_links *real = ((lying_links *)ctx)->real;
	return real->recv(real->ctx, peer, buf, bytes, req, err);
}

static bool omitted(const gradcomp_request *req)
{
	return req->opaque[0] == OMITTED && req->opaque[1] == OMITTED;
}

static gradcomp_status lie_wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	const gradcomp_links *real = ((lying_links *)ctx)->real;
	return omitted(req) ? GRADCOMP_OK : real->wait(real->ctx, req, err);
}

static gradcomp_status lie_test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	const gradcomp_links *real = ((lying_links *)ctx)->real;
	if (!omitted(req))
		return real->test(real->ctx, req, done, err);
	*done = 1;
	return GRADCOMP_OK;
}

static gradcomp_status lie_recv_reduce(void *ctx, int peer, void *acc, size_t count, gradcomp_dtype dtype,
                                       gradcomp_op op, gradcomp_request *req, gradcomp_error *err)
{
	const gradcomp_links *real = ((lying_links *)ctx)->real;
	return real->recv_reduce(real->ctx, peer, acc, count, dtype, op, req, err);
}

static gradcomp_status lie_multicast(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
                                     gradcomp_request *reqs, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; !st && i < n; i++)
		st = lie_send(ctx, peers[i], buf, bytes, &reqs[i], err);
	return st;
}

static gradcomp_status lie_failure(void *ctx, gradcomp_error *err)
{
	const gradcomp_links *real = ((lying_links *)ctx)->real;
	return real->failure(real->ctx, err);
}

/* In place of the library's: the liar's collectives get these links. */
const gradcomp_links *channel_links(const channel *c)
{
	const gradcomp_links *(*next)(const channel *);
	*(void **)&next = dlsym(RTLD_NEXT, "channel_links");
	const gradcomp_links *real = next(c), *out = real;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < nlying; i++)
		if (lying[i].of == c)
			out = &lying[i].api;
	if (real->rank == LIAR && out == real && nlying < CHANNELS) {
		lying_links *l = &lying[nlying++];
		*l = (lying_links){.api = *real, .real = real, .of = c};
		l->api.ctx = l;
		l->api.send = lie_send;
		l->api.recv = lie_recv;
		l->api.wait = lie_wait;
		l->api.test = lie_test;
		l->api.recv_reduce = real->recv_reduce ? lie_recv_reduce : NULL;
		l->api.failure = real->failure ? lie_failure : NULL;
		l->api.multicast = real->multicast ? lie_multicast : NULL;
		out = &l->api;
	}
	pthread_mutex_unlock(&lock);
	return out;
}

typedef struct outcome {
	gradcomp_status made, status;
	gradcomp_error err;
	double took;
} outcome;

static int which;
static uint64_t seed;
static outcome ends[P];

static void train(gradcomp_job *job, int rank, int nranks, void *arg)
{
	static const uint64_t matrix[2] = {ROWS, COLUMNS}, vector[1] = {COLUMNS};
	const gradcomp_tensor_desc tensors[2] = {{"weight", matrix, 2, GRADCOMP_F32},
	                                         {"bias", vector, 1, GRADCOMP_F32}};
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = pairs[which].compressor,
	                              .collective = pairs[which].collective,
	                              .seed = seed};
	float weight[ROWS * COLUMNS], bias[COLUMNS];
	outcome *end = &ends[rank];
	gradcomp_reducer *red;
	(void)nranks, (void)arg;
	end->made = gradcomp_reducer_create(gradcomp_job_world(job), tensors, 2, &o, &red, &end->err);
	if (end->made)
		return;
	if (rank == LIAR) {
		pthread_mutex_lock(&lock);
		awake = true;
		pthread_mutex_unlock(&lock);
	}
	double began = clock_now();
	for (int step = 0; step < STEPS && !end->status; step++) {
		for (int i = 0; i < ROWS * COLUMNS; i++)
			weight[i] = sinf((float)(i * 7 + rank * 1000 + step));
		for (int i = 0; i < COLUMNS; i++)
			bias[i] = cosf((float)(i + rank * 100 + step));
		end->status = gradcomp_reducer_ready(red, 1, bias, &end->err);
		if (!end->status)
			end->status = gradcomp_reducer_ready(red, 0, weight, &end->err);
		if (!end->status)
			end->status = gradcomp_reducer_wait(red, &end->err);
	}
	end->took = clock_now() - began;
	gradcomp_reducer_free(red);
}

int main(int argc, char **argv)
{
	long rounds = mutate_begin(20 * LIES), made = 0, failed = 0, wordless = 0, late = 0;
	double limit = 0.3 * pace();
	char timeout[60], wait_timeout[60], allow[60];
	unsetenv("PMIX_NAMESPACE");
	unsetenv("SLURM_JOB_ID");
	snprintf(timeout, sizeof timeout, "transport.timeout=%g", limit);
	snprintf(wait_timeout, sizeof wait_timeout, "transport.wait_timeout=%g", limit);
	for (long round = 0; round < rounds; round++) {
		snprintf(allow, sizeof allow, "transport.allow=%s",
		         argc > 1        ? argv[1]
		         : round % 4 < 2 ? "tcp"
		                         : "shm,tcp");
		const char *given[] = {plugin_path_setting(),
		                       "gradcomp.log=error",
		                       "security.secret=pmix",
		                       timeout,
		                       wait_timeout,
		                       round % 2 && argc == 1 ? "security.frames=encrypt" : "security.frames=none",
		                       allow,
		                       NULL};
		const char *const *settings[P] = {given};
		rank_arg results[P];

		which = (int)draw(PAIRS);
		seed = draw(1000);
		kind = (enum lie)(round % LIES);
		if (kind == OMIT && round % (4 * LIES) != OMIT) /* each takes the whole time-out */
			kind = CHANGE;
		one_in = kind == CHANGE ? 1 + draw(4) : 2 + draw(12);
		memset(ends, 0, sizeof ends);
		run_ranks_with(P, settings, results, train, NULL);
		awake = false;
		nlying = 0;
		for (kept *k; (k = all_kept);) {
			all_kept = k->next;
			free(k);
		}
		made += !results[0].joined && !ends[0].made;
		bool any = false;
		for (int r = 0; r < P; r++) {
			const outcome *e = &ends[r];
			any |= e->status != 0;
			wordless += e->status && !e->err.text[0];
			if (!in_time(e->took, 3 * limit + 10)) {
				printf("# rank %d: %s over %s, lie %d: %.1f s, status %d, %s\n", r,
				       pairs[which].compressor,
				       pairs[which].collective ? pairs[which].collective : "default", kind, e->took,
				       e->status, e->err.text);
				late++;
			}
		}
		failed += any;
	}
	tap_tried(told, "lies of a rank");
	ok(made > rounds * 3 / 4, "%ld of %ld jobs began", made, rounds);
	ok(told > (unsigned long)rounds, "a rank lied %lu times", told);
	ok(failed > rounds / 4, "%ld jobs noticed", failed);
	is_int(wordless, 0, "each said why");
	is_int(late, 0, "and in time");
	return done_testing();
}
