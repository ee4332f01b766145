/* auto: what is given while a check runs waits for its end; what is given after it, when the
 * next one is due already, waits for that. When the job fails who gave it is told before wait() returns. */
#include "tests/support/tuner_fixture.h"

#include <semaphore.h>

static const char *settings[] = {NULL, "gradcomp.log=error", NULL};

typedef struct held_up {
	sem_t entered, go;
	int checks;
	int failed, ready[2]; /* at the second: whether tensors 0 and 1 had been handed on */
	char text[508];
} held_up;

/* Tensor i of the only part has its gradient. */
static int handed_on(const tuner *c, uint32_t i)
{
	reducer *r = c->parts.partition->sub[0].r;
	pthread_mutex_lock(&r->lock);
	int given = r->step.given[T - 1 - i] != NULL;
	pthread_mutex_unlock(&r->lock);
	return given;
}

static void shows(tuner *c, void *ctx)
{
	held_up *h = ctx;
	if (++h->checks == 1) {
		sem_post(&h->entered);
		sem_wait(&h->go);
	} else if (h->checks == 2) {
		h->ready[0] = handed_on(c, 0);
		h->ready[1] = handed_on(c, 1);
	}
}

static void due(tuner *c)
{
	pthread_mutex_lock(&c->lock);
	c->turns.busy = 1;
	pthread_cond_signal(&c->turns.wake);
	pthread_mutex_unlock(&c->lock);
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	held_up *h = arg;
	gradcomp_error err = {0};
	model m;
	(void)P;
	if (model_open(&m, gradcomp_job_world(job), "auto:candidates=none", 1 << 20, &err)) {
		printf("# %s\n", err.text);
		h->failed = 1;
		return;
	}
	tuner *c = front_of(&m);
	reducer *r = c->parts.partition->sub[0].r;
	h->failed |= model_step(&m, rank, 0, &err) != 0;
	tuner_hook_set((tuner_hook){.of = c, .measured = shows, .ctx = h});
	due(c);
	sem_wait(&h->entered);
	h->failed |= gradcomp_reducer_ready(m.red, 0, m.grad[0], &err) != 0;
	/* Tensor 0 is held up on its way into the part, while the next check becomes due. */
	pthread_mutex_lock(&r->lock);
	sem_post(&h->go);
	for (int inside = 0; !inside; usleep(100)) {
		pthread_mutex_lock(&c->lock);
		inside = c->turns.inside;
		c->turns.busy |= inside;
		pthread_mutex_unlock(&c->lock);
	}
	h->failed |= gradcomp_reducer_ready(m.red, 1, m.grad[1], &err) != 0;
	pthread_mutex_unlock(&r->lock);
	for (uint32_t i = 2; i < T; i++)
		h->failed |= gradcomp_reducer_ready(m.red, i, m.grad[i], &err) != 0;
	h->failed |= gradcomp_reducer_wait(m.red, &err) != 0;
	memcpy(h->text, err.text, sizeof h->text);
	model_close(&m);
}

typedef struct hearing {
	sem_t entered, go;
	atomic_int told[T], ranks, failed;
	int wrong[2], late[2];
	char text[508];
} hearing;

/* Slowly: whoever does not wait for it is gone before the last one. */
static void hears(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	hearing *h = ctx;
	(void)err;
	usleep(5000);
	atomic_fetch_add(&h->told[tensor], status ? 1 : 1000);
}

/* Returns 1 unless each of the tensors before `n` was told of once, and the others were not. */
static int amiss(const hearing *h, int n)
{
	int wrong = 0;
	for (int t = 0; t < T; t++) {
		if (atomic_load(&h->told[t]) != (t < n))
			printf("# tensor %d was told of %d times\n", t, atomic_load(&h->told[t]));
		wrong |= atomic_load(&h->told[t]) != (t < n);
	}
	return wrong;
}

static gradcomp_reducer *hearing_open(gradcomp_job *job, hearing *h)
{
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = "auto:candidates=none/cast",
	                              .bucket_bytes = 1 << 20,
	                              .done = hears,
	                              .ctx = h};
	gradcomp_tensor_desc desc[T];
	gradcomp_reducer *red = NULL;
	gradcomp_error err;
	for (int t = 0; t < T; t++)
		desc[t] = (gradcomp_tensor_desc){.name = names[t], .dims = dims[t], .ndim = ndim[t]};
	if (gradcomp_reducer_create(gradcomp_job_world(job), desc, T, &o, &red, &err))
		printf("# %s\n", err.text);
	return red;
}

/* Two parts of three tensors each: one learns of the failure, since it has all of its gradients, the other has one. */
static void two_parts(gradcomp_job *job, int rank, int P, void *arg)
{
	hearing *h = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *red = hearing_open(job, h);
	tuner *c = (tuner *)red;
	uint8_t of[T] = {0, 0, 0, 1, 1, 1};
	assignment a = {.of = of};
	partition *p = NULL, *old;
	float *grad = calloc(1 << 14, sizeof *grad);
	if (!red || partition_make(c, &a, &p, &err)) {
		printf("# %s\n", err.text);
		exit(1);
	}
	pthread_mutex_lock(&c->lock);
	old = c->parts.partition;
	c->parts.partition = p;
	pthread_mutex_unlock(&c->lock);
	partition_free(c, old, 0);
	atomic_fetch_add(&h->ranks, 1);
	while (atomic_load(&h->ranks) < P)
		usleep(500);
	if (!rank)
		for (uint32_t i = 0; i < 4; i++)
			h->wrong[0] |= gradcomp_reducer_ready(red, i, grad, &err) != 0;
	atomic_fetch_add(&h->ranks, !rank);
	while (atomic_load(&h->ranks) < P + 1)
		usleep(500);
	if (rank) {
		job_fail(job, GRADCOMP_ERR_INTERNAL, "a rank of this test gives up");
		while (!atomic_load(&h->failed))
			usleep(500);
	} else {
		while (!atomic_load(&h->told[0]) && !atomic_load(&h->told[1]) && !atomic_load(&h->told[2]))
			usleep(500);
		h->wrong[0] |= gradcomp_reducer_wait(red, &err) != GRADCOMP_ERR_INTERNAL;
		h->late[0] = amiss(h, 4);
		atomic_store(&h->failed, 1);
	}
	gradcomp_reducer_free(red);
	free(grad);
}

static void hold(tuner *c, void *ctx)
{
	hearing *h = ctx;
	(void)c;
	sem_post(&h->entered);
	sem_wait(&h->go);
}

/* Checks what was given while a check ran, and the job failed. */
static void in_check(gradcomp_job *job, int rank, int P, void *arg)
{
	hearing *h = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *red = hearing_open(job, h);
	tuner *c = (tuner *)red;
	float *grad = calloc(1 << 14, sizeof *grad);
	(void)rank, (void)P;
	tuner_hook_set((tuner_hook){.of = c, .measured = hold, .ctx = h});
	due(c);
	sem_wait(&h->entered);
	for (uint32_t i = 0; i < 2; i++)
		h->wrong[1] |= gradcomp_reducer_ready(red, i, grad, &err) != 0;
	job_fail(job, GRADCOMP_ERR_INTERNAL, "a rank of this test gives up");
	h->wrong[1] |= gradcomp_reducer_ready(red, 2, grad, &err) != GRADCOMP_ERR_INTERNAL;
	sem_post(&h->go);
	h->wrong[1] |= gradcomp_reducer_wait(red, &err) != GRADCOMP_ERR_INTERNAL;
	h->late[1] = amiss(h, 2);
	gradcomp_reducer_free(red);
	free(grad);
}

static void failing(void)
{
	hearing h = {0}, k = {0};
	const char *const *each[2] = {settings, settings};
	rank_arg results[2];
	sem_init(&k.entered, 0, 0);
	sem_init(&k.go, 0, 0);
	run_ranks_with(2, each, results, two_parts, &h);
	ok(!h.wrong[0] && !h.late[0],
	   "wait() of a failed job returns when each tensor that was given has been told of, in both parts");
	ok(!amiss(&h, 4), "and once only");
	run_ranks_with(1, each, results, in_check, &k);
	ok(!k.wrong[1] && !k.late[1], "so it does when they came while a check ran");
	ok(!amiss(&k, 2), "and once only");
	sem_destroy(&k.entered);
	sem_destroy(&k.go);
}

int main(void)
{
	held_up h = {0};
	settings[0] = plugin_path_setting();
	model_seed();
	sem_init(&h.entered, 0, 0);
	sem_init(&h.go, 0, 0);
	run_ranks(1, settings, body, &h);
	ok(!h.failed && h.checks >= 2, "a step whose gradients came before two checks: %d of them%s", h.checks, h.text);
	ok(h.ready[0] && !h.ready[1], "what came when the second was due waited for it");
	sem_destroy(&h.entered);
	sem_destroy(&h.go);
	failing();
	return done_testing();
}
