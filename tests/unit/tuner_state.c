/* auto: saved and loaded, to the bit; behind delayed averages; a rank that dies at a check. */
#include "tests/support/tuner_fixture.h"
#include "tests/support/process_ranks.h"

#include "kinds/autotune/tuner_state.h"
#include "reducer/reducer_ops.h"

static const char *settings[] = {NULL, "gradcomp.log=error", "transport.wait_timeout=20", NULL};
#define SPEC "auto:interval=200,candidates=none/topk:density=0.1/powersgd:rank=2"
/* With these numbers the largest matrix is best off with low rank, others with top-k. */
#define MIXED "auto:interval=200,candidates=none/topk:density=0.07/powersgd:rank=2"
#define MIXED_OTHERWISE "auto:interval=200,candidates=none/powersgd:rank=2/topk:density=0.07"

typedef struct resume {
	int at, until, nth; /* steps until it is saved, and on; steps the other one has done before it loads */
	int slow;           /* trials are lost */
	int mixed;          /* tensors are best off with different compressors */
	int spoil;          /* on rank 1: 1 a damaged state, 2 another step's, 3 one that ends within a length */
	int failed[MAX_RANKS], refused[MAX_RANKS];
	char text[MAX_RANKS][508];
	uint64_t first[MAX_RANKS], second[MAX_RANKS];
	uint32_t with[MAX_RANKS], then[MAX_RANKS];
	uint32_t carry[MAX_RANKS];
	story story;
} resume;

static void watched(model *m, story *t)
{
	tuner_hook_set((tuner_hook){.of = front_of(m), .measured = story_shows, .ctx = t});
}

static gradcomp_status steps(model *m, int rank, int from, int to, uint64_t *print, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int s = from; !st && s < to; s++) {
		st = model_step(m, rank, s, err);
		story_rest(front_of(m));
		if (print)
			*print = mix(*print ^ fingerprint(m));
	}
	return st;
}

/* The state ends 7 bytes into the length of its last part's, and its own length and checksum say so. */
static unsigned char *end_within(const tuner *c, unsigned char *state, uint64_t *bytes)
{
	const partition *p = c->parts.partition;
	uint64_t last = 0;
	tuner_state_head h;
	if (gradcomp_reducer_save(&p->sub[p->n - 1].r->base, NULL, 0, &last, NULL))
		return state;
	*bytes -= tuner_padded(last) + 1;
	memcpy(&h, state, sizeof h);
	h.bytes = *bytes;
	memcpy(state, &h, sizeof h);
	saved_seal(SAVED_AUTO, state, *bytes);
	return realloc(state, *bytes); /* nothing behind it */
}

static void resume_body(gradcomp_job *job, int rank, int P, void *arg)
{
	resume *t = arg;
	gradcomp_error err = {0};
	uint64_t bytes = 0, more = 0;
	model a, b;
	(void)P;
	int failed = model_open(&a, gradcomp_job_world(job), t->mixed ? MIXED : SPEC, 1000, &err) ||
	             model_open(&b, gradcomp_job_world(job), t->mixed ? MIXED_OTHERWISE : SPEC, 1000, &err);
	if (failed) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		t->failed[rank] = 1;
		return;
	}
	watched(&a, &t->story);
	watched(&b, &t->story);
	failed = steps(&a, rank, 0, t->at, NULL, &err) || steps(&b, rank, 0, t->nth, NULL, &err);
	failed |= gradcomp_reducer_save(a.red, NULL, 0, &bytes, &err) != 0;
	unsigned char *state = malloc(bytes + 1);
	failed |= gradcomp_reducer_save(a.red, state, bytes - 1, &more, &err) != GRADCOMP_ERR_INVALID;
	failed |= gradcomp_reducer_save(a.red, state, bytes, &more, &err) != 0 || more != bytes;
	for (int i = 0; i < T; i++)
		t->carry[rank] += front_of(&a)->parts.carry[i] != NULL;
	t->with[rank] = front_of(&a)->parts.now.candidate;
	failed |= steps(&a, rank, t->at, t->until, &t->first[rank], &err) != 0;
	if (t->spoil == 1 && rank == 1)
		state[bytes - 5] ^= 64;
	if (t->spoil == 2 && rank == 1)
		failed |= gradcomp_reducer_save(a.red, state, bytes, &more, &err) != 0;
	if (t->spoil == 3 && rank == 1)
		state = end_within(front_of(&a), state, &bytes);
	t->refused[rank] = gradcomp_reducer_load(b.red, state, bytes, &err) != 0;
	if (t->refused[rank]) {
		memcpy(t->text[rank], err.text, sizeof err.text);
		failed |= steps(&b, rank, t->nth, t->nth + 3, NULL, &err) != 0; /* goes on from the state */
	} else {
		t->then[rank] = front_of(&b)->parts.now.candidate;
		failed |= steps(&b, rank, t->at, t->until, &t->second[rank], &err) != 0;
	}
	if (failed && err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	t->failed[rank] = failed;
	free(state);
	model_close(&a);
	model_close(&b);
}

static void resumes(const char *name, resume *t, int P)
{
	int failed = 0, differ = 0;
	t->story = (story){.seconds = {14e-3, t->slow ? 20e-3 : 3e-3, t->slow ? 20e-3 : 2e-3},
	                   .exposed = 12.7e-3,
	                   .byte = 1e-6,
	                   .error = 0.5};
	if (t->mixed)
		t->story = (story){.seconds = {66e-3, 15e-3, 12e-3, 10e-3},
		                   .exposed = 65e-3,
		                   .byte = 3e-6,
		                   .message = 0.5e-3,
		                   .error = 0.5};
	run_ranks(P, settings, resume_body, t);
	for (int r = 0; r < P; r++) {
		failed |= t->failed[r] || t->refused[r] != !!t->spoil;
		differ |= t->first[r] != t->second[r] || t->first[r] != t->first[0] || t->with[r] != t->then[r];
	}
	if (t->spoil)
		ok(!failed, "%s: refused by all ranks: %s; %s", name, t->text[0], t->text[1]);
	else
		ok(!failed && !differ, "%s: to the bit, with candidate %u, and %u tensors owed", name, t->with[0],
		   t->carry[0]);
}

/* Saved while a guard has set a compressor aside: what that holds back is in the state, and stays with it. */
static void aside_body(gradcomp_job *job, int rank, int P, void *arg)
{
	resume *t = arg;
	gradcomp_error err = {0};
	uint64_t bytes = 0;
	unsigned char *state = NULL;
	model a, b;
	(void)P;
	int failed = model_open(&a, gradcomp_job_world(job), SPEC, 1000, &err) ||
	             model_open(&b, gradcomp_job_world(job), SPEC, 1000, &err);
	if (failed) {
		t->failed[rank] = 1;
		return;
	}
	tuner *c = front_of(&a), *d = front_of(&b);
	watched(&a, &t->story);
	watched(&b, &t->story);
	while (!failed && !c->parts.aside && c->steps < 300)
		failed = steps(&a, rank, (int)c->steps, (int)c->steps + 1, NULL, &err) != 0;
	t->then[rank] = c->parts.aside != NULL;
	failed |= gradcomp_reducer_save(a.red, NULL, 0, &bytes, &err) != 0;
	state = malloc(bytes + 1);
	failed |= gradcomp_reducer_save(a.red, state, bytes, &bytes, &err) != 0;
	failed |= gradcomp_reducer_load(b.red, state, bytes, &err) != 0;
	double off = 0, held = 0;
	for (int k = 0; !failed && c->parts.aside && k < T; k++)
		for (uint64_t i = 0; i < numel(k); i++) {
			held += fabs(held_in(c->parts.aside, k, i));
			off += fabs(held_in(c->parts.aside, k, i) - (d->parts.carry[k] ? d->parts.carry[k][i] : 0));
		}
	t->carry[rank] = held > 0 && off == 0;
	failed |= steps(&a, rank, (int)c->steps, (int)c->steps + 8, NULL, &err) != 0;
	failed |= steps(&b, rank, (int)d->steps, (int)d->steps + 8, NULL, &err) != 0;
	t->with[rank] = c->parts.now.candidate;
	if (failed)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	t->failed[rank] = failed;
	free(state);
	model_close(&a);
	model_close(&b);
}

static void saves_aside(void)
{
	resume t = {.story = {.seconds = {14e-3, 3e-3, 2e-3}, .exposed = 12.7e-3, .byte = 1e-6, .error = 0.5}};
	run_ranks(3, settings, aside_body, &t);
	int failed = 0, all = 1;
	for (int r = 0; r < 3; r++) {
		failed |= t.failed[r];
		all &= t.then[r] && t.carry[r] && t.with[r] == 2;
	}
	ok(!failed && all, "what is set aside is in the state, and comes back in the job that goes on");
}

static void delayed_body(gradcomp_job *job, int rank, int P, void *arg)
{
	resume *t = arg;
	gradcomp_tensor_desc desc[T];
	gradcomp_error err = {0};
	gradcomp_reducer *red;
	float *grad[T];
	void *corrections[T];
	(void)P;
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = SPEC, .delay = 2, .seed = 5};
	for (int i = 0; i < T; i++) {
		desc[i] = (gradcomp_tensor_desc){.name = names[i], .dims = dims[i], .ndim = ndim[i]};
		grad[i] = calloc(numel(i) + 1, sizeof(float));
		corrections[i] = calloc(numel(i) + 1, sizeof(float));
	}
	int failed = gradcomp_reducer_create(gradcomp_job_world(job), desc, T, &o, &red, &err) != 0;
	double sum = 0;
	for (int s = 0; !failed && s < 12; s++) {
		for (int i = T - 1; !failed && i >= 0; i--) {
			for (uint64_t k = 0; k < numel(i); k++)
				grad[i][k] = gradient(rank, s, i, k);
			failed = gradcomp_reducer_ready(red, (uint32_t)i, grad[i], &err) != 0;
		}
		failed |= gradcomp_reducer_wait(red, &err) != 0;
		sum += grad[0][0];
	}
	if (!failed) {
		failed |= gradcomp_reducer_drain(red, corrections, NULL, 0, &err) != 0;
		sum += ((float *)corrections[0])[0];
		gradcomp_reducer_free(red);
	}
	if (failed)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	t->failed[rank] = failed;
	/* All ranks have come to the same sum, to rounding. */
	t->story.sum_out[0][rank] = sum;
	for (int i = 0; i < T; i++) {
		free(grad[i]);
		free(corrections[i]);
	}
}

/* Loading is for all ranks or for none, also where the delay in front finds its part damaged. */
static void spoilt_body(gradcomp_job *job, int rank, int P, void *arg)
{
	resume *t = arg;
	gradcomp_error err = {0};
	uint64_t bytes = 0;
	model m;
	(void)P;
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = SPEC, .delay = 1, .seed = 5};
	int failed = model_open_with(&m, gradcomp_job_world(job), &o, &err) != 0;
	for (int s = 0; !failed && s < 4; s++)
		failed = model_step(&m, rank, s, &err) != 0;
	if (!failed) {
		failed |= gradcomp_reducer_save(m.red, NULL, 0, &bytes, &err) != 0;
		unsigned char *state = malloc(bytes + 1);
		failed |= gradcomp_reducer_save(m.red, state, bytes, &bytes, &err) != 0;
		state[40] ^= rank == 1;
		t->refused[rank] = gradcomp_reducer_load(m.red, state, bytes, &err) != 0;
		memcpy(t->text[rank], err.text, sizeof err.text);
		state[40] ^= rank == 1;
		failed |= gradcomp_reducer_load(m.red, state, bytes, &err) != 0;
		free(state);
		for (int s = 4; !failed && s < 8; s++)
			failed = model_step(&m, rank, s, &err) != 0;
		model_close(&m);
	}
	if (failed)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	t->failed[rank] = failed;
}

/* Rank 2 is gone when the others come to a decision. */
static void dies(tuner *c, void *ctx)
{
	(void)ctx;
	story_shows(c, ctx);
	if (c->group->me == 2 && c->steps > 3)
		_exit(7);
}

static void mortal_body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static story t = {.seconds = {14e-3, 3e-3, 2e-3}, .exposed = 12.7e-3, .byte = 1e-6, .error = 0.5};
	gradcomp_error err = {0};
	model m;
	(void)board;
	if (model_open(&m, gradcomp_job_world(job), SPEC, 1000, &err))
		return;
	tuner_hook_set((tuner_hook){.of = front_of(&m), .measured = dies, .ctx = &t});
	for (int s = 0; s < 40; s++)
		if (model_step(&m, rank, s, &err))
			break;
	memcpy(room, err.text, 400);
	model_close(&m);
}

int main(void)
{
	settings[0] = plugin_path_setting();
	model_seed();
	resume before = {.at = 1, .until = 2}, early = {.at = 30, .until = 45},
	       late = {.at = 30, .until = 45, .nth = 30};
	resume trial = {.at = 6, .until = 8}, damaged = {.at = 30, .until = 32, .spoil = 1},
	       other = {.at = 30, .until = 32, .spoil = 2}, within = {.at = 30, .until = 32, .spoil = 3};
	resumes("before anything was decided", &before, 3);
	resumes("a decision, into a reducer that has none", &early, 4);
	resumes("a decision, into one that has it", &late, 2);
	resumes("in a trial", &trial, 3);
	resume mixed = {.at = 30, .until = 45, .nth = 2, .mixed = 1};
	resumes("a mix, into a job that lists its candidates in another order", &mixed, 3);
	ok(mixed.with[0] == 3, "it was one");
	resume lost = {.at = 12, .until = 16, .slow = 1};
	resumes("after a trial that was lost", &lost, 3);
	ok(lost.carry[0] && lost.carry[2], "what is owed goes along");
	resumes("a state that is damaged on one rank", &damaged, 3);
	resumes("states of different steps", &other, 3);
	resumes("a state that ends within a length", &within, 3);
	ok(strstr(within.text[1], "parts are cut off"), "which is said: %s", within.text[1]);

	saves_aside();

	resume late_averages = {0};
	run_ranks(3, settings, delayed_body, &late_averages);
	double *sum = late_averages.story.sum_out[0];
	ok(!late_averages.failed[0] && !late_averages.failed[1] && !late_averages.failed[2] &&
	           fabs(sum[0] - sum[1]) < 1e-4 && fabs(sum[0] - sum[2]) < 1e-4,
	   "behind delayed averages: %g %g %g", sum[0], sum[1], sum[2]);

	resume spoilt = {0};
	run_ranks(3, settings, spoilt_body, &spoilt);
	for (int r = 0; r < 3; r++)
		ok(!spoilt.failed[r] && spoilt.refused[r], "damaged before the averages that are late, on rank 1: %s",
		   spoilt.text[r]);
	ok(strstr(spoilt.text[1], "its checksum differs") && strstr(spoilt.text[0], "rank 1 on ") &&
	           strstr(spoilt.text[0], "cannot load its state"),
	   "each rank knows why");

	process_board *b = run_processes(4, settings, mortal_body, 400);
	const char *said = process_room(b, 0);
	ok(strstr(said, "rank 2") != NULL, "a rank that dies at a check is named: %s", said);
	end_processes(b);
	return done_testing();
}
