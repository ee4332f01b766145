/* Gradients of two iterations are never averaged together: a tensor that is given again in a step
 * that has not ended ends the job, as does a rank that is at another step than its peers. */
#include "tests/support/small_model.h"

#include "reducer/reducer.h"

#include <unistd.h>

typedef struct steps {
	const char *spec;
	uint64_t bucket_bytes;
	uint32_t delay;
	int ahead; /* by so many steps is rank 1 */
	gradcomp_status status[MAX_RANKS];
	char text[MAX_RANKS][508];
	int undone[MAX_RANKS];
} steps;

static gradcomp_status open_steps(model *m, gradcomp_job *job, const steps *s, gradcomp_error *err)
{
	const gradcomp_reducer_options o = {
		.struct_size = sizeof o, .compressor = s->spec, .bucket_bytes = s->bucket_bytes, .delay = s->delay};
	return model_open_with(m, gradcomp_job_world(job), &o, err);
}

/* Rank 1 gives up step 1 after three tensors, forgets the error, and begins the next iteration. */
static void again_body(gradcomp_job *job, int rank, int P, void *arg)
{
	steps *s = arg;
	gradcomp_error err = {0};
	model m;
	(void)P;
	gradcomp_status st = open_steps(&m, job, s, &err);
	if (!st)
		st = model_step(&m, rank, 0, &err);
	if (st) {
		s->status[rank] = st;
		return;
	}
	if (rank != 1) {
		for (int step = 1; !st && step <= 2 + (int)s->delay; step++)
			st = model_step(&m, rank, step, &err);
	} else {
		for (int t = T - 1; !st && t > 2; t--)
			st = gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err);
		usleep(20000); /* until some of it is on its way */
		for (int t = T - 1; t >= 0; t--) {
			gradcomp_status own = gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], st ? NULL : &err);
			st = st ? st : own;
			s->undone[rank] |= !own; /* none of it is taken */
		}
	}
	s->status[rank] = st;
	memcpy(s->text[rank], err.text, sizeof err.text);
	model_close(&m);
}

/* Rank 0 has given one tensor, of a bucket with more, when rank 1 ends the job: with the next one it
 * learns that, and the first is done. */
static void between_body(gradcomp_job *job, int rank, int P, void *arg)
{
	steps *s = arg;
	gradcomp_error err = {0}, known;
	model m;
	(void)P;
	gradcomp_status st = open_steps(&m, job, s, &err);
	if (!st)
		st = model_step(&m, rank, 0, &err);
	s->undone[rank] = 1;
	s->status[rank] = st;
	if (st)
		return;
	int done = m.done;
	st = gradcomp_reducer_ready(m.red, T - 1, m.grad[T - 1], &err);
	if (!st && rank == 1) {
		usleep(50000);
		job_fail(job, GRADCOMP_ERR_STATE, "enough of it");
	}
	for (int i = 0; !st && i < 4000 && !transport_failure(job->transport, &known); i++)
		usleep(5000);
	if (!st)
		st = gradcomp_reducer_ready(m.red, T - 2, m.grad[T - 2], &err);
	s->status[rank] = st;
	s->undone[rank] = m.done != done + 1000;
	memcpy(s->text[rank], err.text, sizeof err.text);
	model_close(&m);
}

static void apart_body(gradcomp_job *job, int rank, int P, void *arg)
{
	steps *s = arg;
	gradcomp_error err = {0};
	model m;
	(void)P;
	gradcomp_status st = open_steps(&m, job, s, &err);
	if (!st)
		st = model_step(&m, rank, 0, &err);
	if (st) {
		s->undone[rank] = 1;
		memcpy(s->text[rank], err.text, sizeof err.text);
		return;
	}
	if (rank == 1)
		reducer_of(m.red)->eng.step += (uint64_t)s->ahead;
	s->status[rank] = model_step(&m, rank, 1, &err);
	memcpy(s->text[rank], err.text, sizeof err.text);
	model_close(&m);
}

static void all_say(int P, steps s, gradcomp_status status, const char *what, const char *const texts[3],
                    void (*body)(gradcomp_job *, int, int, void *), const char *const *settings)
{
	const char *const *all[MAX_RANKS] = {settings};
	rank_arg left[MAX_RANKS];
	int right = 0;
	run_ranks_with(P, all, left, body, &s);
	for (int r = 0; r < P; r++) {
		int named = 1;
		for (int i = 0; i < 3 && texts[i]; i++)
			named &= strstr(s.text[r], texts[i]) != NULL;
		right += s.status[r] == status && named && !s.undone[r];
	}
	ok(right == P, "%s, %s, buckets of %llu bytes: all of %d ranks say so", what, s.spec,
	   (unsigned long long)s.bucket_bytes, P);
	for (int r = 0; r < P && right != P; r++)
		printf("# rank %d: %d%s %s\n", r, (int)s.status[r], s.undone[r] ? " went on" : "", s.text[r]);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	const char *const again[3] = {"rank 1 on ", "tensor 5 'w2' was given again in step 1", "half-way"};
	static const char *const specs[] = {"powersgd:rank=2", "topk:density=0.1", "threshold:t=0.1",
	                                    "gtopk:density=0.1", "block:bits=8"};
	model_seed();
	for (int k = 0; k < 2; k++) {
		uint64_t bytes = k ? 25 << 20 : 1;
		all_say(3, (steps){.spec = "none", .bucket_bytes = bytes}, GRADCOMP_ERR_STATE, "given again", again,
		        again_body, settings);
		all_say(2, (steps){.spec = "topk:density=0.1", .bucket_bytes = bytes}, GRADCOMP_ERR_STATE,
		        "given again", again, again_body, settings);
	}
	all_say(2, (steps){.spec = "auto", .bucket_bytes = 1}, GRADCOMP_ERR_STATE, "given again", again, again_body,
	        settings);
	all_say(2, (steps){.spec = "none", .bucket_bytes = 1, .delay = 1}, GRADCOMP_ERR_STATE, "given again, delayed",
	        again, again_body, settings);
	const char *const enough[3] = {"rank 1 on ", "enough of it"};
	all_say(2, (steps){.spec = "none", .bucket_bytes = 25 << 20}, GRADCOMP_ERR_STATE,
	        "the job ends between two tensors", enough, between_body, settings);
	all_say(2, (steps){.spec = "auto", .bucket_bytes = 25 << 20}, GRADCOMP_ERR_STATE,
	        "the job ends between two tensors", enough, between_body, settings);
	for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
		for (int ahead = -1; ahead < 3; ahead += 3) {
			/* Not always both ways: of the largest of words only who is behind learns. */
			const char *const apart[3] = {"the bucket of '", " are of step "};
			all_say(3, (steps){.spec = specs[i], .bucket_bytes = 1 << 20, .ahead = ahead},
			        GRADCOMP_ERR_MISMATCH, "at another step", apart, apart_body, settings);
		}
	return done_testing();
}
