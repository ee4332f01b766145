/* auto: a job that is resumed compares again, with what the job before it knew of others. */
#include "tests/support/tuner_fixture.h"

static const char *settings[] = {NULL, "gradcomp.log=error", NULL};
#define SPEC "auto:interval=20,candidates=none/cast:type=bf16/topk:density=0.1"
enum { CAST = 1, TOPK = 2, BEFORE = 40, SHARED = 46, AFTER = 40 };

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
		*seen |= 1u << front_of(m)->parts.now.candidate;
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
			if (rank % 2 == t->measured) /* a slow network before the first step shows the same */
				tuner_measure(c);
			t->failed[rank] |= gradcomp_reducer_load(m.red, state, bytes, &err) != 0;
			t->kept[rank] = c->parts.now.candidate;
			t->cast[rank] = c->choice.last.measured[CAST];
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

enum { NUMBERS = 4096 };
static double owes[MAX_RANKS][NUMBERS]; /* each rank, tensor after tensor */
static unsigned char *shared[MAX_RANKS];
static uint64_t shared_bytes[MAX_RANKS];

/* In the reducers of parts, and carried over from others. */
static void owed(const tuner *c, double *to)
{
	memset(to, 0, NUMBERS * sizeof *to);
	for (uint32_t i = 0; i < T; i++) {
		const subreducer *q = &c->parts.partition->sub[c->parts.partition->of[i]];
		const gradcomp_tensor *t = &q->r->eng.layout.tensors[q->n - 1 - c->parts.partition->as[i]];
		for (uint64_t k = 0; k < t->numel; k++)
			*to++ = (q->r->eng.arrays.memory ? (double)q->r->eng.arrays.memory[t->offset + k] : 0) +
			        (c->parts.carry[i] ? (double)c->parts.carry[i][k] : 0);
	}
}

static void share_body(gradcomp_job *job, int rank, int P, void *arg)
{
	resumed *t = arg;
	gradcomp_error err = {0};
	uint32_t seen = 0;
	model m;
	(void)P;
	t->failed[rank] = model_open(&m, gradcomp_job_world(job), SPEC, 1000, &err) != 0;
	if (t->failed[rank])
		return;
	tuner_hook_set((tuner_hook){.of = front_of(&m), .measured = story_shows, .ctx = &t->story});
	t->failed[rank] |= some_steps(&m, rank, 0, SHARED, &seen, &err) != 0;
	owed(front_of(&m), owes[rank]);
	t->failed[rank] |= gradcomp_reducer_save_shared(m.red, NULL, 0, &shared_bytes[rank], &err) != 0;
	shared[rank] = malloc(shared_bytes[rank]);
	t->failed[rank] |=
		gradcomp_reducer_save_shared(m.red, shared[rank], shared_bytes[rank], &shared_bytes[rank], &err) != 0;
	t->failed[rank] |= some_steps(&m, rank, SHARED, SHARED + 2, &seen, &err) != 0;
	memcpy(t->text[rank], err.text, sizeof t->text[0]);
	model_close(&m);
}

static void take_body(gradcomp_job *job, int rank, int P, void *arg)
{
	resumed *t = arg;
	gradcomp_error err = {0}, why = {0};
	gradcomp_reducer_options o = {
		.struct_size = sizeof o, .compressor = SPEC, .bucket_bytes = 1000, .seed = 5, .delay = 1};
	model m, late, plain;
	(void)P;
	t->failed[rank] = model_open(&m, gradcomp_job_world(job), SPEC, 1000, &err) ||
	                  model_open_with(&late, gradcomp_job_world(job), &o, &err) ||
	                  model_open(&plain, gradcomp_job_world(job), "topk:density=0.1", 1000, &err);
	if (t->failed[rank])
		return;
	tuner_hook_set((tuner_hook){.of = front_of(&m), .measured = story_shows, .ctx = &t->story});
	t->failed[rank] |=
		(gradcomp_reducer_load(m.red, shared[0], shared_bytes[0] - 8 * (uint64_t)(rank == 1), &why) >= 0) << 1;
	t->failed[rank] |= (gradcomp_reducer_load(plain.red, shared[0], shared_bytes[0], &why) != GRADCOMP_ERR_MISMATCH)
	                   << 2;
	t->failed[rank] |= (gradcomp_reducer_load(m.red, shared[0], shared_bytes[0], &err) != 0) << 3;
	t->failed[rank] |= (gradcomp_reducer_load(late.red, shared[0], shared_bytes[0], &err) != 0) << 4;
	t->kept[rank] = front_of(&m)->parts.now.candidate;
	owed(front_of(&m), owes[rank]);
	t->failed[rank] |= some_steps(&m, rank, SHARED, SHARED + AFTER, &t->seen[rank], &err) != 0;
	memcpy(t->text[rank], err.text, sizeof t->text[0]);
	model_close(&m);
	model_close(&late);
	model_close(&plain);
}

static void goes_to_others(const story *made_up, int ranks)
{
	static const int others[] = {2, 5};
	double before[NUMBERS] = {0}, most = 0;
	resumed t = {.story = *made_up};
	int failed = 0;
	run_ranks(ranks, settings, share_body, &t);
	for (int r = 0; r < ranks; r++) {
		failed |= t.failed[r] || shared_bytes[r] != shared_bytes[0] ||
		          memcmp(shared[r], shared[0], shared_bytes[0]);
		for (int i = 0; i < NUMBERS; i++)
			before[i] += owes[r][i] / ranks;
	}
	for (int i = 0; i < NUMBERS; i++)
		most = fmax(most, fabs(before[i]));
	ok(!failed && most > 0, "%d ranks save the same %llu bytes %s", ranks, (unsigned long long)shared_bytes[0],
	   t.text[0]);
	for (int k = 0; k < 2 && !failed; k++) {
		double off = 0;
		int wrong = 0;
		t = (resumed){.story = *made_up};
		run_ranks(others[k], settings, take_body, &t);
		for (int i = 0; i < NUMBERS; i++) {
			double mean = 0;
			for (int r = 0; r < others[k]; r++)
				mean += owes[r][i] / others[k];
			off = fmax(off, fabs(mean - before[i]));
		}
		for (int r = 0; r < others[k]; r++)
			wrong |= t.failed[r] | (t.kept[r] != TOPK) << 8 | (t.seen[r] != t.seen[0]) << 9;
		ok(!wrong && off <= 1e-7 * most,
		   "%d go on with what had won and owe the same: off by %.1e of %.2g (%#x) %s", others[k], off, most,
		   (unsigned)wrong, t.text[0]);
	}
	for (int r = 0; r < ranks; r++)
		free(shared[r]);
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
			ok(!t.failed[r] && t.kept[r] == TOPK && t.cast[r] > 0, "it goes on with what had won%s%s",
			   *t.text[r] ? ": " : "", t.text[r]);
		ok(t.seen[0] == (1u << TOPK | 1u << CAST) && t.seen[1] == t.seen[0] && t.seen[2] == t.seen[0],
		   "compares with the dense one that had been the faster, and returns: %#x", t.seen[0]);
	}
	goes_to_others(&made_up, 3);
	return done_testing();
}
