/* auto: what is given while a check runs waits for its end; what is given after it, when the
 * next one is due already, waits for that. */
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
	reducer *r = c->partition->sub[0].r;
	pthread_mutex_lock(&r->lock);
	int given = r->given[T - 1 - i] != NULL;
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
	c->busy = 1;
	pthread_cond_signal(&c->wake);
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
	reducer *r = c->partition->sub[0].r;
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
		inside = c->inside;
		c->busy |= inside;
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
	return done_testing();
}
