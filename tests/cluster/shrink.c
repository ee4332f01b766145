/* A small training job that may outlive ranks (shrink.t, tests/soak/shrink): least squares by gradient
 * descent on the same samples however many ranks there are, which share them anew when some are lost.
 *   shrink STEPS [dataset] [RANK:KILL|STOP:FIRST|SHRINK:SECONDS]...
 * With "dataset" the samples come from one, an epoch of it a step, and each must have come once in every step
 * that is done.
 * RANK kills or stops itself SECONDS after its first step, or after it has called gradcomp_job_shrink() for the
 * first time, and writes the time to died.RANK just before. A rank that is alone calls that at once. Every rank
 * writes shrunk.RANK when that has succeeded, and end.RANK as it ends:
 *   "STATUS steps N loss L weights HASH ranks N lost R,R told T agreed T stall S kib K: TEXT"
 * with ranks as the job began with, times in seconds since 1970, S the longest time between two steps and K what
 * it holds more than before it joined. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <gradcomp/dataset.h>
#include <gradcomp/gradcomp.h>

enum { IN = 64, SAMPLES = 960, MOST = 64, PAUSE = 5000 /* us */ };

static float weight[IN], grad[IN + 1], x[SAMPLES][IN], y[SAMPLES];
static gradcomp_dataset *ds;
static gradcomp_error err;
static int rank, nranks, origin[MOST], lost[MOST], nlost;

static struct {
	int rank, kill, in_shrink, met;
	double seconds;
} fate;

static double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void tell(const char *name, int r, const char *text)
{
	char path[40], hidden[42];
	FILE *f;
	snprintf(path, sizeof path, "%s.%d", name, r);
	snprintf(hidden, sizeof hidden, ".%s", path);
	f = fopen(hidden, "w");
	if (!f || fprintf(f, "%s\n", text) < 0 || fclose(f) || rename(hidden, path))
		_exit(5);
}

static void *meet_fate(void *arg)
{
	char text[40];
	usleep((useconds_t)(fate.seconds * 1e6));
	snprintf(text, sizeof text, "%.6f", now());
	tell("died", fate.rank, text);
	raise(fate.kill ? SIGKILL : SIGSTOP);
	return arg;
}

static void begin_fate(int in_shrink)
{
	pthread_t thread;
	if (fate.met || fate.in_shrink != in_shrink)
		return;
	fate.met = 1;
	if (pthread_create(&thread, NULL, meet_fate, NULL))
		_exit(5);
}

static void make_data(void)
{
	uint64_t state = 12345;
	for (int s = 0; s < SAMPLES; s++) {
		y[s] = 0;
		for (int i = 0; i < IN; i++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			x[s][i] = (float)((double)(state >> 11) * 0x1p-52 - 1);
			y[s] += x[s][i] * (float)(i % 7 - 3);
		}
	}
}

static float off(int s)
{
	float d = -y[s];
	for (int i = 0; i < IN; i++)
		d += x[s][i] * weight[i];
	return d;
}

static gradcomp_status load(void *ctx, uint64_t s, gradcomp_value_buffer *out, gradcomp_error *e)
{
	float *v = out->alloc(out, sizeof x[s]);
	(void)ctx, (void)e;
	if (!v)
		return GRADCOMP_ERR_NOMEM;
	memcpy(v, x[s], sizeof x[s]);
	return GRADCOMP_OK;
}

/* The mean over ranks is the mean over samples; the last is how many there were. */
static void add(int s, const float *v)
{
	float d = off(s);
	for (int i = 0; i < IN; i++)
		grad[i] += d * v[i] * (float)nranks / SAMPLES;
	grad[IN] += (float)nranks;
}

static gradcomp_status backward(int step)
{
	gradcomp_value_view v = {.struct_size = sizeof v};
	gradcomp_status st = ds ? gradcomp_dataset_begin(ds, (uint64_t)step, 0, &err) : GRADCOMP_OK;
	memset(grad, 0, sizeof grad);
	for (int s = rank; !ds && s < SAMPLES; s += nranks)
		add(s, x[s]);
	while (ds && !st && !(st = gradcomp_dataset_next(ds, &v, &err)) && v.data) {
		if (v.index >= SAMPLES || v.bytes != sizeof x[0] || memcmp(v.data, x[v.index], sizeof x[0])) {
			snprintf(err.text, sizeof err.text, "sample %llu has another value",
			         (unsigned long long)v.index);
			return GRADCOMP_ERR_MISMATCH;
		}
		add((int)v.index, v.data);
		gradcomp_dataset_release(ds, &v);
	}
	return st;
}

static double loss(void)
{
	double sum = 0;
	for (int s = 0; s < SAMPLES; s++)
		sum += 0.5 * (double)off(s) * off(s) / SAMPLES;
	return sum;
}

static gradcomp_status shrink(gradcomp_job *job, int *step_done)
{
	gradcomp_survivors who = {.struct_size = sizeof who};
	int old[MOST];
	gradcomp_status st = gradcomp_job_shrink(job, &who, &err);
	if (st)
		return st;
	memcpy(old, origin, sizeof old);
	for (int i = 0; i < who.old_nranks - who.nranks; i++)
		lost[nlost++] = old[who.lost[i]];
	for (int i = 0; i < who.nranks; i++)
		origin[i] = old[who.ranks[i]];
	rank = who.rank;
	nranks = who.nranks;
	*step_done = who.step_done;
	return GRADCOMP_OK;
}

static long resident_kib(void)
{
	char line[200];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		sscanf(line, "VmRSS: %ld", &kib);
	if (f)
		fclose(f);
	return kib;
}

int main(int argc, char **argv)
{
	const uint64_t dims[1] = {IN + 1};
	gradcomp_dataset_options samples = {
		.struct_size = sizeof samples, .count = SAMPLES, .memory = 4 << 20, .shuffle = 1, .load = load};
	const gradcomp_tensor_desc tensor = {"weight", dims, 1, GRADCOMP_F32};
	int wanted = argc > 1 ? atoi(argv[1]) : 200, steps = 0, first, with_dataset = 0;
	double told = 0, agreed = 0, stall = 0, last;
	long kib = resident_kib();
	gradcomp_reducer *red = NULL;
	gradcomp_job *job;
	gradcomp_status st;
	char text[1200], names[300] = "";
	uint64_t hash = 0xcbf29ce484222325u;
	rank = first = getenv("SLURM_PROCID") ? atoi(getenv("SLURM_PROCID")) : 0;
	fate.rank = rank;
	fate.met = 1;
	for (int i = 2; i < argc; i++) {
		char what[8], when[8];
		double seconds;
		int who;
		if (!strcmp(argv[i], "dataset")) {
			with_dataset = 1;
			continue;
		}
		if (sscanf(argv[i], "%d:%7[A-Z]:%7[A-Z]:%lf", &who, what, when, &seconds) != 4)
			return 2;
		if (who != rank)
			continue;
		fate.kill = !strcmp(what, "KILL");
		fate.in_shrink = !strcmp(when, "SHRINK");
		fate.seconds = seconds;
		fate.met = 0;
	}
	if (gradcomp_job_create(NULL, &job, &err)) {
		snprintf(text, sizeof text, "%d steps 0: %s", err.status, err.text);
		tell("end", first, text);
		return 3;
	}
	nranks = gradcomp_job_nranks(job);
	for (int i = 0; i < nranks; i++)
		origin[i] = i;
	make_data();
	st = gradcomp_reducer_create(gradcomp_job_world(job), &tensor, 1, NULL, &red, &err);
	if (!st && with_dataset)
		st = gradcomp_dataset_create(gradcomp_job_world(job), &samples, &ds, &err);
	if (!st)
		st = gradcomp_barrier(gradcomp_job_world(job), &err);
	if (!st && nranks == 1)
		st = gradcomp_job_shrink(job, NULL, &err);
	begin_fate(0);
	last = now();
	while (!st && steps < wanted) {
		int done = 1;
		usleep(PAUSE);
		st = backward(steps);
		if (!st)
			st = gradcomp_reducer_ready(red, 0, grad, &err);
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
		while (st == GRADCOMP_ERR_PEER_LOST) {
			told = told > 0 ? told : now();
			begin_fate(1);
			st = shrink(job, &done);
			agreed = st || agreed > 0 ? agreed : now();
			if (!st)
				tell("shrunk", first, "");
		}
		if (st || !done)
			continue;
		if ((int)(grad[IN] + 0.5f) != SAMPLES) {
			snprintf(err.text, sizeof err.text, "%g samples in step %d, of %d", (double)grad[IN], steps,
			         SAMPLES);
			st = GRADCOMP_ERR_MISMATCH;
		}
		for (int i = 0; i < IN; i++)
			weight[i] -= 0.5f * grad[i];
		steps++;
		stall = now() - last > stall ? now() - last : stall;
		last = now();
	}
	kib = resident_kib() - kib;
	/* A rank that is done stays for those that have not heard yet that they are. */
	for (int done; !st;) {
		gradcomp_error end;
		if (gradcomp_barrier(gradcomp_job_world(job), &end) != GRADCOMP_ERR_PEER_LOST || shrink(job, &done))
			break;
	}
	for (size_t i = 0; i < sizeof weight; i++)
		hash = (hash ^ ((unsigned char *)weight)[i]) * 0x100000001b3u;
	for (int i = 0; i < nlost; i++)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%d", i ? "," : "", lost[i]);
	snprintf(text, sizeof text,
	         "%d steps %d loss %.6g weights %016llx ranks %d lost %s told %.3f agreed %.3f stall %.3f kib %ld: %s",
	         st, steps, loss(), (unsigned long long)hash, nranks, *names ? names : "-", told, agreed, stall, kib,
	         st ? err.text : "well");
	tell("end", first, text);
	gradcomp_dataset_free(ds, NULL);
	gradcomp_reducer_free(red);
	return gradcomp_job_free(job, NULL) || st ? 3 : 0;
}
