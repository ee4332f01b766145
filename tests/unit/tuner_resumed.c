/* auto: a job that is resumed compares again, with what the job before it knew of others. */
#include "tests/support/tuner_fixture.h"

static const char *settings[] = {NULL, "auto.interval=20", "gradcomp.log=error", NULL};
#define SPEC "auto:candidates=none/cast:type=bf16/topk:density=0.1"
enum { CAST = 1, TOPK = 2, BEFORE = 40, AFTER = 40 };

typedef struct resumed {
	story story;
	int measured; /* ranks that have measured candidates before they load: even ones, odd ones */
	int failed[MAX_RANKS];
	uint32_t kept[MAX_RANKS], seen[MAX_RANKS]; /* bits of the candidates that ran after it */
	double cast[MAX_RANKS];
	char text[MAX_RANKS][508];
} resumed;

static gradcomp_status some_steps(model *m, int rank, int from, int to, uint32_t *seen, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int s = from; !st && s < to; s++) {
		*seen |= 1u << front_of(m)->now.candidate;
		st = model_step(m, rank, s, err);
		story_rest(front_of(m));
	}
	return st;
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	resumed *t = arg;
	gradcomp_error err = {0};
	void *state = NULL;
	uint64_t bytes = 0;
	uint32_t before = 0;
	(void)P;
	for (int life = 0; life < 2 && !t->failed[rank]; life++) {
		model m;
		t->failed[rank] = model_open(&m, gradcomp_job_world(job), SPEC, 1000, &err) != 0;
		if (t->failed[rank])
			break;
		tuner *c = front_of(&m);
		tuner_hook_set((tuner_hook){.of = c, .measured = story_shows, .ctx = &t->story});
		if (life) {
			if (rank % 2 == t->measured) /* as on a slow network before the first step */
				tuner_measure(c);
			t->failed[rank] |= gradcomp_reducer_load(m.red, state, bytes, &err) != 0;
			t->kept[rank] = c->now.candidate;
			t->cast[rank] = c->last.measured[CAST];
		}
		t->failed[rank] |= some_steps(&m, rank, life ? BEFORE : 0, life ? BEFORE + AFTER : BEFORE,
		                              life ? &t->seen[rank] : &before, &err) != 0;
		if (!life && !t->failed[rank]) {
			t->failed[rank] |= gradcomp_reducer_save(m.red, NULL, 0, &bytes, &err) != 0;
			state = malloc(bytes);
			t->failed[rank] |= gradcomp_reducer_save(m.red, state, bytes, &bytes, &err) != 0;
		}
		model_close(&m);
	}
	free(state);
	memcpy(t->text[rank], err.text, sizeof t->text[0]);
}

int main(void)
{
	/* Top-k wins its trial, bfloat16 loses its own but to nothing dense. */
	const story made_up = {.seconds = {14e-3, 12e-3, 10e-3, 20e-3}, .exposed = 12.7e-3, .byte = 1e-6, .error = 0.5};
	settings[0] = plugin_path_setting();
	model_seed();
	for (int measured = 0; measured < 2; measured++) {
		resumed t = {.story = made_up, .measured = measured};
		run_ranks(3, settings, body, &t);
		for (int r = 0; r < 3; r++)
			ok(!t.failed[r] && t.kept[r] == TOPK && t.cast[r] > 0, "it goes on with what had won%s%s", *t.text[r] ? ": " : "",
			   t.text[r]);
		ok(t.seen[0] == (1u << TOPK | 1u << CAST) && t.seen[1] == t.seen[0] && t.seen[2] == t.seen[0],
		   "compares with the dense one that had been the faster, and returns: %#x", t.seen[0]);
	}
	return done_testing();
}
