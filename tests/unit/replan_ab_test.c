/* Two plans that are predicted to be about as good are compared by running them: which one
 * stays, and what becomes of it when a rank cannot have a plan, or a state is loaded meanwhile.
 *
 * The first plan is in force after PLANNED steps, its candidate after CANDIDATE; after ENDS one is left. */
#include "tests/support/replan_fixture.h"

enum { PLANNED = 18, CANDIDATE = 26, ENDS = 34 };

static times favouring(uint32_t messages)
{
	times t = usual;
	t.favours = messages;
	return t;
}

/* 18.0 ms are predicted of three messages and 18.1 of one: both are run. */
static void candidates(void)
{
	times t = favouring(1), later;
	job_run *j = run(3, "mgwfbp:greedy", 40, &t);
	ok(sound(j, 3) && j->plans[0] == 1 && j->nbuckets[0] == 1 && !strcmp(j->name, "fixed") &&
	           j->predicted[2] == j->predicted[0],
	   "a simple plan that runs faster than the one that was solved for stays: '%s'", j->name);
	t.favours = 3;
	j = run(3, "mgwfbp:greedy", 40, &t);
	ok(sound(j, 3) && j->plans[0] == 1 && j->nbuckets[0] == 3 && !strcmp(j->name, "mgwfbp:greedy"),
	   "one that does not is left again: '%s'", j->name);
	t.favours = 1;
	later = t;
	later.wild = 1;
	j = run_more(3, "mgwfbp:greedy", 40, &t, PLANNED + 1, &later);
	ok(sound(j, 3) && j->nbuckets[0] == 1 && !strcmp(j->name, "fixed"),
	   "steps are compared, whatever line the exchanges are on: '%s'", j->name);
}

/* The functions below run between two steps. */

static job_run *run_scene(const char *schedule, int steps, uint32_t favours,
                          void (*between)(job_run *run, gradcomp_reducer *r, int rank, int s))
{
	static job_run result;
	const times t = favouring(favours);
	result = (job_run){
		.compressor = "none", .schedule = schedule, .steps = steps, .t = t, .later = t, .between = between};
	run_ranks(3, settings, measured_body, &result);
	return &result;
}

/* From then on a rank's compressor counts to 8 in a bucket, so that no plan is one for it; or
 * as far as before. */
static void limit(gradcomp_reducer *r, int rank, int on)
{
	static struct gradcomp_compressor_v1 limited[MAX_RANKS];
	static const struct gradcomp_compressor_v1 *was[MAX_RANKS];
	pthread_mutex_lock(&reducer_of(r)->lock);
	if (on) {
		was[rank] = reducer_of(r)->eng.compressor;
		limited[rank] = *reducer_of(r)->eng.compressor;
		limited[rank].max_bucket = 8;
	}
	reducer_of(r)->eng.compressor = on ? &limited[rank] : was[rank];
	pthread_mutex_unlock(&reducer_of(r)->lock);
}

static struct seen {
	int runs;
	uint32_t nbuckets;
	uint64_t next, steps;
	double predicted;
	char name[48], plan[48], reason[200];
} seen;

static void look_at(gradcomp_reducer *r, int rank)
{
	const struct replan *q = reducer_of(r)->replan;
	report_schedule *s = rank ? NULL : replan_report(reducer_of(r));
	if (!s)
		return;
	seen = (struct seen){.runs = q->ab_test.runs,
	                     .nbuckets = reducer_of(r)->eng.list.nbuckets,
	                     .next = q->next,
	                     .steps = reducer_of(r)->eng.stats.steps,
	                     .predicted = q->last.plan.predicted};
	snprintf(seen.name, sizeof seen.name, "%s", q->name);
	snprintf(seen.plan, sizeof seen.plan, "%s", s->plan);
	snprintf(seen.reason, sizeof seen.reason, "%s", q->reason);
	free(s->asked);
	free(s->plan);
	free(s->fallback);
	free(s->buckets);
	free(s);
}

static void without_candidate(job_run *run, gradcomp_reducer *r, int rank, int s)
{
	(void)run;
	if (s == CANDIDATE - 2)
		look_at(r, rank);
	if (rank == 1 && (s == CANDIDATE - 2 || s == CANDIDATE))
		limit(r, rank, s < CANDIDATE);
}

static void without_way_back(job_run *run, gradcomp_reducer *r, int rank, int s)
{
	(void)run;
	if (s == CANDIDATE + 2)
		look_at(r, rank);
	if (rank == 1 && (s == CANDIDATE + 2 || s == ENDS))
		limit(r, rank, s < ENDS);
}

static void without_plan(job_run *run, gradcomp_reducer *r, int rank, int s)
{
	(void)run;
	if (rank == 2 && (s == PLANNED - 2 || s == PLANNED))
		limit(r, rank, s < PLANNED);
	if (s == PLANNED)
		look_at(r, rank);
}

static void without_phase(job_run *run, gradcomp_reducer *r, int rank, int s)
{
	(void)run;
	if (rank == 2 && (s == PLANNED / 3 - 2 || s == PLANNED / 3))
		limit(r, rank, s < PLANNED / 3);
	if (s == PLANNED / 3)
		look_at(r, rank);
}

/* A plan that cannot be had on one rank is had on none, and what is said is of the plan in force. */
static void refused(void)
{
	job_run *j = run_scene("mgwfbp:greedy", 40, 1, without_candidate);
	ok(sound(j, 3) && j->nbuckets[0] == 3 && seen.nbuckets == 3 && !strcmp(j->name, "mgwfbp:greedy") &&
	           j->plans[0] == 1,
	   "a rank cannot have the candidate: '%s' stays, with %u messages", j->name, j->nbuckets[0]);
	ok(seen.runs == AB_FOUND && seen.predicted > 0 && j->predicted[0] == seen.predicted &&
	           j->predicted[1] == seen.predicted,
	   "and what is predicted is its step: %g s", j->predicted[0]);
	j = run_scene("mgwfbp:greedy", 40, 3, without_way_back);
	ok(sound(j, 3) && seen.runs == AB_CANDIDATE && j->nbuckets[0] == 1 && !strcmp(j->name, "fixed") &&
	           j->predicted[0] == seen.predicted && j->predicted[2] == seen.predicted,
	   "a rank cannot go back: '%s' stays, with %u message", j->name, j->nbuckets[0]);
	j = run_scene("mgwfbp:greedy", PLANNED + 2, 0, without_plan);
	ok(sound(j, 3) && j->plans[0] == 0 && !strcmp(seen.plan, "fixed") && strstr(seen.reason, "rank 2 on "),
	   "a rank cannot have the plan: none was made, and why: %s", seen.reason);
	j = run_scene("mgwfbp:greedy", PLANNED + 8 + PLANNED + 2, 0, without_plan);
	ok(sound(j, 3) && j->plans[0] == 1 && !*j->reason, "and one is made later: %u messages", j->nbuckets[0]);
	j = run_scene("mgwfbp:greedy", PLANNED + 2, 0, without_phase);
	ok(sound(j, 3) && seen.nbuckets == 1 && j->plans[0] == 1,
	   "a rank cannot have small buckets, which are not measured then");
}

static void between_trials(job_run *run, gradcomp_reducer *r, int rank, int s)
{
	(void)run;
	if (s == PLANNED)
		look_at(r, rank);
}

static struct state {
	void *bytes[MAX_RANKS];
	uint64_t n[MAX_RANKS];
	int save, load, ran; /* steps at which it is saved and loaded; state of a trial when it was loaded */
	int failed[MAX_RANKS], before[MAX_RANKS];
	uint32_t nbuckets[MAX_RANKS][2]; /* when it was saved, and loaded */
} state;

static void resume(job_run *run, gradcomp_reducer *r, int rank, int s)
{
	gradcomp_error err = {0};
	gradcomp_status st = GRADCOMP_OK;
	(void)run;
	if (s == state.save) {
		st = gradcomp_reducer_save(r, NULL, 0, &state.n[rank], &err);
		state.bytes[rank] = malloc(state.n[rank]);
		if (!st)
			st = gradcomp_reducer_save(r, state.bytes[rank], state.n[rank], &state.n[rank], &err);
		state.nbuckets[rank][0] = reducer_of(r)->eng.list.nbuckets;
	}
	if (s == state.load) {
		if (rank == 0)
			state.ran = reducer_of(r)->replan->ab_test.runs;
		st = gradcomp_reducer_load(r, state.bytes[rank], state.n[rank], &err);
		state.nbuckets[rank][1] = reducer_of(r)->eng.list.nbuckets;
		state.before[rank] = reducer_of(r)->replan->before.end != NULL;
		look_at(r, rank);
		free(state.bytes[rank]);
	}
	if (st)
		printf("# rank %d: %s\n", rank, err.text);
	state.failed[rank] |= st != GRADCOMP_OK;
}

/* In force is the state's plan, on all ranks, and nothing that had begun before goes on. */
static int loads(const job_run *j)
{
	int good = sound(j, 3) && seen.runs == AB_NONE;
	for (int p = 0; p < 3; p++)
		good &= !state.failed[p] && state.nbuckets[p][0] == state.nbuckets[p][1] && !state.before[p];
	return good;
}

static void loaded(void)
{
	state = (struct state){.save = PLANNED + 2, .load = CANDIDATE + 2};
	job_run *j = run_scene("mgwfbp:greedy", 40, 1, resume);
	ok(loads(j) && state.nbuckets[0][1] == 3 && j->nbuckets[0] == 3 && j->settled[1] &&
	           seen.next == CANDIDATE + 3 + 8,
	   "a state of a plan, loaded while its candidate runs: %u messages, and no comparing", j->nbuckets[0]);
	ok(state.ran == AB_CANDIDATE && !strcmp(seen.plan, "saved") && seen.predicted == 0,
	   "the report says whose the plan is: '%s'", seen.plan);
	state = (struct state){.save = CANDIDATE + 1, .load = CANDIDATE + 5};
	j = run_scene("mgwfbp:greedy", 50, 3, resume);
	ok(loads(j) && j->nbuckets[0] == 1 && j->plans[0] == 1, "one of a candidate that runs: %u message stays",
	   j->nbuckets[0]);
	state = (struct state){.save = 3, .load = CANDIDATE + 2};
	j = run_scene("mgwfbp:greedy", CANDIDATE + 3 + PLANNED + 1, 3, resume);
	ok(loads(j) && j->plans[0] == 2 && seen.next == CANDIDATE + 3 + PLANNED / 3 && !strcmp(seen.plan, "saved"),
	   "one from before there was a plan: measured anew, and a second plan");
}

/* Times change and all is in one message: plans are measured again, and a state comes. */
static void loaded_while_measuring(void)
{
	static job_run run;
	times t = usual, later;
	t.a = 50e-3;
	later = t;
	later.a = 5e-3;
	state = (struct state){.save = PLANNED + 2, .load = CANDIDATE + 2};
	run = (job_run){.compressor = "none",
	                .schedule = "mgwfbp:greedy",
	                .steps = CANDIDATE + 12,
	                .t = t,
	                .later = later,
	                .drift_at = PLANNED + 1,
	                .between = resume};
	run_ranks(3, settings, measured_body, &run);
	ok(loads(&run) && run.nbuckets[0] == 1,
	   "a state that is loaded while plans are measured again takes their place");
}

/* Compressors work on shards, which move with the buckets. */
static void levels(const char *schedule, const char *compressor, uint32_t favours)
{
	static const int nodes[] = {0, 0, 1, 1};
	static job_run j;
	const times t = favouring(favours);
	int same = 1;
	j = (job_run){.compressor = compressor,
	              .schedule = schedule,
	              .steps = 50,
	              .t = t,
	              .later = t,
	              .between = between_trials};
	ranks_on(nodes);
	settings[4] = "gradcomp.collective=hier";
	run_ranks(4, settings, measured_body, &j);
	settings[4] = NULL;
	ranks_on(NULL);
	for (int p = 0; p < 4; p++)
		same &= !j.failed[p] && j.print[p] == j.print[0] && j.nbuckets[p] == j.nbuckets[0] &&
		        j.plans[p] == j.plans[0];
	ok(same && j.plans[0] == 1 && seen.runs == AB_FOUND && (favours == 1) == (j.nbuckets[0] == 1),
	   "two levels, %s of %s: both were run, and '%s' stays, with %u messages", schedule, compressor, j.name,
	   j.nbuckets[0]);
}

int main(void)
{
	settings[1] = plugin_path_setting();
	settings[2] = "schedule.profile_steps=18";
	settings[3] = "schedule.replan_steps=8";
	candidates();
	refused();
	loaded();
	loaded_while_measuring();
	levels("auto", "topk:density=0.5", 1);
	levels("auto", "topk:density=0.5", 3);
	return done_testing();
}
