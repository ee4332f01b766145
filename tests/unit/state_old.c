/* States that version 2 wrote (tests/golden/state-2.bin) are read still: what they keep comes
 * out as it went in, with other buckets too where it is by parameter, and where it is not
 * that is said, with what to do.
 *
 * `state_old write FILE` makes such a file, of the version the library writes. */
#include "tests/support/thread_ranks.h"

#include "reducer/state/reducer_state.h"

enum { TENSORS = 4, BUCKET = 100, MOST = 4096 };

static const uint64_t shape[TENSORS][2] = {{5, 7}, {0, 3}, {1, 11}, {6, 4}};

static const struct {
	const char *compressor, *collective;
	int P, by_bucket;
} cases[] = {
	{"topk:density=0.1", "ring", 2, 0},
	{"powersgd:rank=2", "ring", 2, 0},
	{"dgc:density=0.1", "ring", 2, 0},
	{"onebit", "direct", 2, 1},
	{"topk:density=0.2", "hier:ranks_per_node=2", 4, 1},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Has one for each case and rank, in the file one after another behind their lengths. */
static struct kept {
	uint64_t bytes;
	unsigned char state[MOST];
} kept[CASES][4];

static int at; /* the case that runs */
static char said[4][508];
static int wrong[4];

static gradcomp_reducer *open_reducer(gradcomp_group *g, uint64_t bucket_bytes, gradcomp_error *err)
{
	gradcomp_tensor_desc desc[TENSORS];
	gradcomp_reducer_options o = {
		.struct_size = sizeof o, .compressor = cases[at].compressor, .bucket_bytes = bucket_bytes, .seed = 5};
	gradcomp_reducer *red = NULL;
	for (int t = 0; t < TENSORS; t++)
		desc[t] = (gradcomp_tensor_desc){.dims = shape[t], .ndim = 2};
	return gradcomp_reducer_create(g, desc, TENSORS, &o, &red, err) ? NULL : red;
}

static gradcomp_status one_step(gradcomp_reducer *red, int rank, int step, gradcomp_error *err)
{
	float grad[TENSORS][64];
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t t = 0; !st && t < TENSORS; t++) {
		for (uint32_t i = 0; i < 64; i++)
			grad[t][i] =
				(float)((i * 37 + t * 11 + (uint32_t)rank * 5 + (uint32_t)step * 3) % 64) / 64 - 0.4f;
		st = gradcomp_reducer_ready(red, t, grad[t], err);
	}
	return st ? st : gradcomp_reducer_wait(red, err);
}

static int save(gradcomp_reducer *red, struct kept *k, gradcomp_error *err)
{
	return gradcomp_reducer_save(red, NULL, 0, &k->bytes, err) || k->bytes > MOST ||
	       gradcomp_reducer_save(red, k->state, MOST, &k->bytes, err);
}

static void write_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	gradcomp_reducer *red = open_reducer(gradcomp_job_world(job), BUCKET, &err);
	(void)P, (void)arg;
	if (!red || one_step(red, rank, 0, &err) || one_step(red, rank, 1, &err) || save(red, &kept[at][rank], &err))
		ok(0, "rank %d: %s", rank, err.text);
	gradcomp_reducer_free(red);
}

/* Behind head and plan all is as it was. */
static int same(gradcomp_reducer *red, const struct kept *old, const struct kept *now)
{
	size_t was = offsetof(state_head, nbuckets),
	       is = sizeof(state_head) + 2 * sizeof(uint32_t) * reducer_of(red)->eng.list.nbuckets;
	state_head h[2];
	memset(h, 0, sizeof h);
	memcpy(&h[0], old->state, was);
	memcpy(&h[1], now->state, sizeof h[1]);
	return old->bytes > was && now->bytes == old->bytes - was + is && h[0].step == h[1].step &&
	       !memcmp(old->state + was, now->state + is, old->bytes - was);
}

static void read_body(gradcomp_job *job, int rank, int P, void *arg)
{
	uint64_t bucket_bytes = *(uint64_t *)arg;
	gradcomp_error err = {0};
	struct kept now;
	gradcomp_reducer *red = open_reducer(gradcomp_job_world(job), bucket_bytes, &err);
	const struct kept *old = &kept[at][rank];
	(void)P;
	wrong[rank] = !red;
	said[rank][0] = 0;
	if (red && gradcomp_reducer_load(red, old->state, old->bytes, &err)) {
		memcpy(said[rank], err.text, sizeof said[rank]);
		err = (gradcomp_error){0};
	} else if (red) {
		wrong[rank] |= save(red, &now, &err) || !same(red, old, &now);
	}
	wrong[rank] |= red && one_step(red, rank, 2, &err);
	if (err.text[0])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	gradcomp_reducer_free(red);
}

static void run(void (*body)(gradcomp_job *, int, int, void *), uint64_t bucket_bytes)
{
	char setting[100];
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", setting, NULL};
	snprintf(setting, sizeof setting, "gradcomp.collective=%s", cases[at].collective);
	run_ranks(cases[at].P, settings, body, &bucket_bytes);
}

static int each(FILE *f, int reads)
{
	int failed = 0;
	for (int c = 0; c < CASES; c++)
		for (int r = 0; !failed && r < cases[c].P; r++) {
			struct kept *k = &kept[c][r];
			if (reads)
				failed = fread(&k->bytes, 8, 1, f) != 1 || k->bytes > MOST ||
				         fread(k->state, 1, k->bytes, f) != k->bytes;
			else
				failed =
					fwrite(&k->bytes, 8, 1, f) != 1 || fwrite(k->state, 1, k->bytes, f) != k->bytes;
		}
	return failed;
}

static void reads(uint64_t bucket_bytes)
{
	int other = bucket_bytes != BUCKET, failed = 0, refused = 0, why = 1;
	run(read_body, bucket_bytes);
	for (int r = 0; r < cases[at].P; r++) {
		failed |= wrong[r];
		refused += said[r][0] != 0;
		why &= !said[r][0] ||
		       (strstr(said[r], "of version 2") && strstr(said[r], "bucket_bytes it was saved with"));
	}
	ok(!failed && why && refused == (other && cases[at].by_bucket ? cases[at].P : 0), "%s over %s, %s buckets: %s",
	   cases[at].compressor, cases[at].collective, other ? "other" : "the same",
	   refused ? said[0] : "as it was saved");
}

int main(int argc, char **argv)
{
	const char *src = getenv("GRADCOMP_SRC");
	char path[4096];
	FILE *f;
	snprintf(path, sizeof path, "%s/tests/golden/state-2.bin", src ? src : ".");
	if (argc == 3 && !strcmp(argv[1], "write")) {
		for (at = 0; at < CASES; at++)
			run(write_body, BUCKET);
		f = fopen(argv[2], "wb");
		return !f || each(f, 0) || fclose(f);
	}
	f = fopen(path, "rb");
	ok(f && !each(f, 1), "%s is there", path);
	if (f)
		fclose(f);
	for (at = 0; at < CASES; at++) {
		ok(kept[at][0].bytes && !memcmp(kept[at][0].state, "GCSTATE2", 8), "a state of version 2, %llu bytes",
		   (unsigned long long)kept[at][0].bytes);
		reads(BUCKET);
		reads(1 << 20);
	}
	return done_testing();
}
