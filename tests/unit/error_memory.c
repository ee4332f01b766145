/* Error memory of fewer bits: what a form keeps of numbers against their bounds in double precision, and reducers that
 * keep theirs so: nothing is lost but what the form rounds, states resume to the bit, and what cannot be is refused. */
#include "tests/support/residuals.h"

#include "coder/coder_internal.h"
#include "gradcomp/plugin.h"
#include "step/error_memory.h"

enum { TENSORS = 8, MOST = 1300 };

static const uint64_t sizes[TENSORS] = {0, 1, 63, 64, 0, 65, 1000, 0};
static const char *const form_names[MEMORY_FORMS] = {"f32", "bf16", "i8"};
static uint64_t draws;

static double drawn(void)
{
	return (double)(mix(seed + ++draws) >> 11) / 4503599627370496.0 - 1;
}

/* An error memory of these tensors, whose layout is *l. */
static error_memory *memory_of(memory_form form, double share, gradcomp_layout *l)
{
	static gradcomp_tensor tensors[TENSORS];
	uint64_t at = 0;
	for (int i = 0; i < TENSORS; at += sizes[i++])
		tensors[i] = (gradcomp_tensor){.name = "t", .numel = sizes[i], .offset = at};
	*l = (gradcomp_layout){.struct_size = sizeof *l, .tensors = tensors, .ntensors = TENSORS, .numel = at};
	return error_memory_make(l, gradcomp_host_operators(), form, (float)share);
}

/* The most that number i of x may be off by once it has been kept: its form's half step. */
static double bound(memory_form form, const gradcomp_layout *l, const float *x, uint64_t i)
{
	double most = 0;
	if (form == MEMORY_F32)
		return 0;
	if (form == MEMORY_BF16)
		return fmax(fabs((double)x[i]) / 256, 0x1p-134);
	for (uint32_t t = 0; t < l->ntensors; t++) {
		const uint64_t begin = l->tensors[t].offset, end = begin + l->tensors[t].numel;
		if (i < begin || i >= end)
			continue;
		const uint64_t from = begin + (i - begin) / 64 * 64;
		for (uint64_t k = from; k < from + 64 && k < end; k++)
			most = fmax(most, fabs((double)x[k]));
	}
	return most < 127.5 * 0x1p-126 ? most : most / 253;
}

/* Returns how many numbers are kept too coarsely, and checks that what was read packs into the same bytes. */
static int coarse(error_memory *m, memory_form form, const gradcomp_layout *l, const float *x)
{
	static float y[MOST], again[MOST];
	int wrong = 0;
	error_memory_read(m, 0, l->numel, y);
	for (uint64_t i = 0; i < l->numel; i++)
		wrong += !(fabs((double)y[i] - x[i]) <= bound(form, l, x, i));
	error_memory_write(m, 0, l->numel, y);
	error_memory_read(m, 0, l->numel, again);
	return wrong + !!memcmp(y, again, l->numel * sizeof *y);
}

static void random_numbers(memory_form form)
{
	static const double scales[] = {1, 1e-3, 1e30, 3e38, 1e-30, 1e-36, 1e-38, 1e-42};
	static float x[MOST], y[MOST];
	gradcomp_layout l;
	error_memory *m = memory_of(form, 1, &l);
	const uint64_t n = l.numel;
	int wrong = 0, misplaced = 0, cases = 0;
	for (int k = 0; k < 400; k++) {
		const double scale = scales[k % 8];
		for (uint64_t i = 0; i < n; i++)
			x[i] = (float)(scale * drawn() * (k % 3 ? 1 : exp(20 * drawn() - 20)) * (k % 5 || i % 3));
		error_memory_write(m, 0, n, x);
		wrong += coarse(m, form, &l, x);
		/* A part of it: what was written is within its bound, and the rest within two. */
		error_memory_read(m, 0, n, y);
		const uint64_t at = (uint64_t)(fabs(drawn()) * (double)n),
			       some = (uint64_t)(fabs(drawn()) * (double)(n - at));
		for (uint64_t i = at; i < at + some; i++)
			y[i] = (float)(scale * drawn());
		memcpy(x, y, n * sizeof *x);
		error_memory_write(m, at, some, y + at);
		wrong += coarse(m, form, &l, x);
		error_memory_read(m, at, some, y);
		error_memory_read(m, 0, n, x);
		misplaced += !!memcmp(y, x + at, some * sizeof *y);
		cases += 2;
	}
	error_memory_free(m);
	ok(!wrong && !misplaced, "%s: %d random memories are within half a step, and pack again into the same bytes",
	   form_names[form], cases);
}

static void special_numbers(memory_form form)
{
	static const float values[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-130f, 0x1.fffffep127f, -0x1.fffffep127f};
	static float x[MOST], y[MOST];
	gradcomp_layout l;
	error_memory *m = memory_of(form, 1, &l);
	const uint64_t n = l.numel;
	int wrong = 0, silent = 0, spoilt = 0;
	for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
		for (uint64_t i = 0; i < n; i++)
			x[i] = values[v];
		error_memory_write(m, 0, n, x);
		wrong += coarse(m, form, &l, x);
	}
	for (uint64_t i = 0; i < n; i++)
		x[i] = (float)drawn();
	const uint64_t bad = 1 + 63 + 64 + 65 + 500;
	for (int k = 0; k < 3; k++) {
		x[bad] = k == 0 ? NAN : k == 1 ? INFINITY : -INFINITY;
		error_memory_write(m, 0, n, x);
		error_memory_read(m, 0, n, y);
		silent += isfinite(y[bad]) != 0;
		for (uint64_t i = 0; i < n; i++)
			spoilt += !isfinite(y[i]);
	}
	error_memory_free(m);
	ok(!wrong && !silent && spoilt == (form == MEMORY_I8 ? 3 * 64 : 3),
	   "%s: zeroes, denormal and largest numbers keep to it; NaN and Inf stay, in i8 they spoil 64 numbers (%d)",
	   form_names[form], spoilt);
}

/* The moving average, step by step, against double precision. */
static void average(memory_form form)
{
	static float x[MOST], y[MOST], left[MOST];
	const double share = 0.3;
	gradcomp_layout l;
	error_memory *m = memory_of(form, share, &l);
	const uint64_t n = l.numel;
	int wrong = 0;
	for (int k = 0; k < 20; k++) {
		error_memory_read(m, 0, n, y);
		for (uint64_t i = 0; i < n; i++) {
			left[i] = (float)drawn();
			x[i] = (float)((1 - share) * y[i] + share * left[i]);
		}
		error_memory_store(m, 0, n, left);
		error_memory_read(m, 0, n, y);
		for (uint64_t i = 0; i < n; i++)
			wrong += !(fabs((double)y[i] - x[i]) <= bound(form, &l, x, i) + 1e-6);
	}
	error_memory_free(m);
	ok(!wrong, "%s: average=0.3 is that of what was kept and what is new", form_names[form]);
}

static double memory_before[MEMORIES], memory_after[MEMORIES];
static model *models[MAX_RANKS];

typedef struct reducing {
	const char *spec, *collective;
	double rounding; /* of the largest that is kept, at most; of all steps' memories the last is at least half the largest */
} reducing;

/* Steps, in each of which what goes in comes out or is held, but for what the memory rounds. */
static void conserves(gradcomp_job *job, int rank, int P, void *arg)
{
	const reducing *c = arg;
	gradcomp_error err = {0};
	model m;
	double worst = 0, kept = 0;
	gradcomp_status st = model_open_over(&m, gradcomp_job_world(job), c->spec, c->collective, 8000, &err);
	if (st) {
		ok(0, "%s: rank %d: %s", c->spec, rank, err.text);
		return;
	}
	models[rank] = &m;
	for (int s = 0; s < 6; s++) {
		ranks_wait();
		if (rank == 0)
			memories(models, P, memory_before);
		ranks_wait();
		st = model_step(&m, rank, s, &err);
		ranks_wait();
		if (rank == 0) {
			memories(models, P, memory_after);
			worst = fmax(worst, st ? INFINITY : memories_off(models, P, s, memory_before, memory_after));
		}
	}
	for (int r = 0; rank == 0 && r < P; r++) {
		memset(memory_after, 0, sizeof memory_after);
		memory_add(memory_after, reducer_of(models[r]->red));
		for (int i = 0; i < MEMORIES; i++)
			kept = fmax(kept, fabs(memory_after[i]));
	}
	if (rank == 0)
		ok(worst <= 1e-5 + 2 * P * kept * c->rounding && kept > 0,
		   "%s%s%s: what was given is sent or kept: off by %.2g, of memories up to %.2g", c->spec,
		   c->collective ? " over " : "", c->collective ? c->collective : "", worst, kept);
	ranks_wait();
	model_close(&m);
}

static unsigned char *state_of(model *m, uint64_t *bytes)
{
	unsigned char *p = NULL;
	gradcomp_error err = {0};
	if (gradcomp_reducer_save(m->red, NULL, 0, bytes, &err) || !(p = malloc(*bytes)) ||
	    gradcomp_reducer_save(m->red, p, *bytes, bytes, &err))
		*bytes = 0;
	return p;
}

static int same_states(model *a, model *b)
{
	uint64_t bytes[2];
	unsigned char *s[2] = {state_of(a, &bytes[0]), state_of(b, &bytes[1])};
	const int same = bytes[0] && bytes[0] == bytes[1] && !memcmp(s[0], s[1], bytes[0]);
	free(s[0]);
	free(s[1]);
	return same;
}

/* A state goes on to the bit, and no reducer with another memory takes it. */
static void resumes(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *world = gradcomp_job_world(job);
	const reducing *of = arg;
	gradcomp_error err = {0};
	char other[100];
	uint64_t bytes;
	model a, b, c;
	int same = 1;
	(void)P;
	const size_t before = (size_t)(strstr(of->spec, "=i8") - of->spec);
	snprintf(other, sizeof other, "%.*s=bf16%s", (int)before, of->spec, of->spec + before + 3);
	if (model_open_over(&a, world, of->spec, of->collective, 8000, &err) ||
	    model_open_over(&b, world, of->spec, of->collective, 1 << 20, &err) ||
	    model_open_over(&c, world, other, of->collective, 8000, &err)) {
		ok(0, "%s: rank %d: %s", of->spec, rank, err.text);
		return;
	}
	for (int s = 0; s < 3; s++)
		same &= !model_step(&a, rank, s, &err);
	unsigned char *state = state_of(&a, &bytes);
	same &= !gradcomp_reducer_load(b.red, state, bytes, &err) && same_states(&a, &b);
	for (int s = 3; s < 6; s++) {
		same &= !model_step(&a, rank, s, &err);
		const uint64_t mark = fingerprint(&a);
		same &= !model_step(&b, rank, s, &err) && mark == fingerprint(&b);
	}
	same &= same_states(&a, &b);
	if (rank == 0)
		ok(same, "%s over %s: a state goes on to the bit %s", of->spec, of->collective, err.text);
	const gradcomp_status st = gradcomp_reducer_load(c.red, state, bytes, &err);
	if (rank == 0)
		ok(st < 0 && strstr(err.text, "memory=i8") && strstr(err.text, "memory=bf16"),
		   "a reducer of another memory refuses it: %s", err.text);
	model_close(&a);
	model_close(&b);
	model_close(&c);
	free(state);
}

/* What the first step leaves in memory is left alone by one whose gradients are not finite on one rank. */
static void spared(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	float e[2][MEMORIES];
	model m;
	(void)P;
	if (model_open(&m, gradcomp_job_world(job), arg, 8000, &err) || model_step(&m, rank, 0, &err)) {
		ok(0, "rank %d: %s", rank, err.text);
		return;
	}
	const engine *eng = &reducer_of(m.red)->eng;
	engine_read(eng, 0, 0, eng->layout.numel, e[0], &err);
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m.grad[t][i] = rank ? 1 : NAN;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t t = 0; !st && t < T; t++)
		st = gradcomp_reducer_ready(m.red, t, m.grad[t], &err);
	st = st ? st : gradcomp_reducer_wait(m.red, &err);
	engine_read(eng, 0, 0, eng->layout.numel, e[1], &err);
	if (rank == 0)
		ok(!st && isnan(m.grad[0][0]) && !memcmp(e[0], e[1], eng->layout.numel * sizeof **e),
		   "%s: a step with NaN leaves the memory alone %s", (const char *)arg, err.text);
	model_close(&m);
}

static void refuses(gradcomp_job *job, int rank, int P, void *arg)
{
	static const struct {
		const char *spec, *words;
		gradcomp_device device;
	} cases[] = {
		{"qsgd:memory=i8", "keeps no error memory: leave memory=", GRADCOMP_HOST},
		{"cast:memory=i8", "unknown parameter 'memory'", GRADCOMP_HOST},
		{"block:memory=i4", "memory=f32|bf16|i8", GRADCOMP_HOST},
		{"block:average=1.5", "is too large", GRADCOMP_HOST},
		{"block:bits=4,memory=i8", "a GPU keeps error memory as floats", GRADCOMP_CUDA},
		{"block:bits=4,average=0.5", "a GPU keeps error memory as floats", GRADCOMP_CUDA},
	};
	gradcomp_group *world = gradcomp_job_world(job);
	(void)P, (void)arg;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const gradcomp_reducer_options o = {.struct_size = sizeof o,
		                                    .compressor = cases[i].spec,
		                                    .collective = "ring",
		                                    .device = cases[i].device};
		gradcomp_error err = {0};
		model m;
		const gradcomp_status st = model_open_with(&m, world, &o, &err);
		if (!st)
			model_close(&m);
		if (rank == 0)
			ok(st && strstr(err.text, cases[i].words), "%s is refused: %s", cases[i].spec,
			   st ? err.text : "was taken");
	}
	gradcomp_coder *coder = NULL;
	gradcomp_error err = {0};
	const gradcomp_status st = gradcomp_coder_create(world, "block:memory=i8", NULL, &coder, &err);
	if (rank == 0)
		ok(st && strstr(err.text, "a coder keeps what it has lost as floats"), "a coder refuses it: %s",
		   err.text);
	gradcomp_coder_free(coder);
}

/* The bits of averages with a SPEC, after some steps. */
static uint64_t marks[MAX_RANKS];
static void marked(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	model m;
	(void)P;
	marks[rank] = 0;
	if (model_open(&m, gradcomp_job_world(job), arg, 8000, &err))
		return;
	for (int s = 0; s < 4; s++)
		marks[rank] = model_step(&m, rank, s, &err) ? 0 : mix(marks[rank] ^ fingerprint(&m));
	model_close(&m);
}

int main(void)
{
	static const reducing cases[] = {
		{"block:bits=4,memory=i8", NULL, 1 / 253.0},
		{"block:bits=4,memory=bf16", NULL, 1 / 256.0},
		{"block:bits=2,memory=i8", "direct", 1 / 253.0},
		{"fp4:memory=i8,rotate=yes", "ring", 1 / 253.0},
		{"onebit:memory=i8", NULL, 1 / 253.0},
		{"topk:density=0.1,memory=i8", NULL, 1 / 253.0},
		{"powersgd:rank=2,memory=bf16", NULL, 1 / 256.0},
		{"signsgd:memory=i8", NULL, 1 / 253.0},
	};
	static const int node_of[] = {0, 0, 1, 1};
	static const reducing levels = {"topk:density=0.1,memory=i8", "hier", 1 / 253.0};
	static const char *const as_floats[] = {"block:bits=4", "block:bits=4,memory=f32,average=1"};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	const char *verified[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error",
	                          "gradcomp.verify=yes", NULL};
	uint64_t bits[2];
	model_seed();
	for (int form = 0; form < MEMORY_FORMS; form++) {
		random_numbers((memory_form)form);
		special_numbers((memory_form)form);
		average((memory_form)form);
	}
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		run_ranks(i % 2 ? 3 : 2, verified, conserves, (void *)(uintptr_t)&cases[i]);
	ranks_on(node_of);
	run_ranks(4, verified, conserves, (void *)(uintptr_t)&levels);
	run_ranks(4, settings, resumes, (void *)(uintptr_t)&levels);
	ranks_on(NULL);
	run_ranks(2, settings, resumes,
	          (void *)(uintptr_t) & (const reducing){"block:bits=4,memory=i8,average=0.8", "ring", 0});
	run_ranks(2, settings, resumes, (void *)(uintptr_t) & (const reducing){"onebit:memory=i8", "direct", 0});
	run_ranks(2, settings, spared, "block:bits=4,memory=i8");
	run_ranks(2, settings, refuses, NULL);
	for (int i = 0; i < 2; i++) {
		run_ranks(2, settings, marked, (void *)(uintptr_t)as_floats[i]);
		bits[i] = marks[0];
	}
	ok(bits[0] && bits[0] == bits[1], "memory=f32 is what there is without it");
	return done_testing();
}
