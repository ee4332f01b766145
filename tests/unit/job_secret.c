/* Where a job's secret comes from: files that are not private are refused, ranks with
 * the same make the same key, another job, run, secret or namespace another one. */
#include "tests/support/tap.h"

#include "security/job_secret.h"
#include "tests/support/tmpdir.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const log_sink sink = {GRADCOMP_LOG_ERROR, -1};
static gradcomp_error err;

static gradcomp_status take(const char *setting, const char *text0, const char *mine, const char *space,
                            unsigned char *key)
{
	return job_secret_take(setting, text0, mine, space, 0, &sink, key, &err);
}

static void put(const char *path, size_t bytes, int mode)
{
	FILE *f = fopen(path, "w");
	for (size_t i = 0; i < bytes; i++)
		fputc((int)(i * 7 + 1), f);
	fclose(f);
	chmod(path, (mode_t)mode);
}

static gradcomp_status offer(const char *setting, int rank, char *text)
{
	return job_secret_offer(setting, rank, NULL, 0, &sink, text, &err);
}

static void refused(const char *setting, const char *why, const char *name)
{
	char text[JOB_SECRET_TEXT];
	ok(offer(setting, 1, text) < 0, "%s: refused", name);
	like(err.text, why, name);
}

int main(void)
{
	char text[JOB_SECRET_TEXT], again[JOB_SECRET_TEXT], other[JOB_SECRET_TEXT], path[200], setting[220], wide[220];
	unsigned char a[SECRET_BYTES], b[SECRET_BYTES];
	unsetenv("PMIX_NAMESPACE");
	unsetenv("SLURM_STEP_ID");
	setenv("SLURM_JOB_ID", "17", 1);
	umask(022);
	tmpdir_make("secret");

	ok(!offer("pmix", 0, text) && !offer("pmix", 3, other), "pmix: rank 0 draws one");
	is_str(other, "pmix", "the others only say where from");
	like(text, " 17.- ", "it says which job");
	ok(!job_secret_alike(text, other, 3, &err), "both take the same way");
	ok(!take("pmix", text, other, NULL, a) && !take("pmix", text, text, NULL, b) && !memcmp(a, b, sizeof a),
	   "all have one key");
	ok(!offer("pmix", 0, again) && !take("pmix", again, other, NULL, b) && memcmp(a, b, sizeof a),
	   "another run has another");
	ok(!offer("auto", 0, again) && !strncmp(again, "pmix ", 5), "auto without PMIx and Slurm: as the store has it");

	ok(take("pmix", text, other, "slurm.pmix.9.0", b) < 0, "a record of another job is refused");
	like(err.text, "rank 0 is of job 17.-, this rank of job slurm.pmix.9.0", "and both are named");
	for (size_t cut = 0; cut < strlen(text); cut++) {
		char part[JOB_SECRET_TEXT];

		memcpy(part, text, cut);
		part[cut] = '\0';
		if (!take("pmix", part, other, NULL, b))
			ok(0, "cut after %zu bytes it is taken", cut);
	}
	ok(take("pmix", text, "file", NULL, b) < 0, "who looks at a file does not take it from a record");
	ok(take("pmix", text, "munge", NULL, b) < 0, "nor who wants it sealed");

	snprintf(path, sizeof path, "%s/17", tmpdir);
	snprintf(setting, sizeof setting, "file:%s/%%j", tmpdir);
	snprintf(wide, sizeof wide, "file:%s", path);
	refused(setting, "No such file", "no file");
	put(path, 31, 0600);
	refused(setting, "has too few bytes; it must have 32 to 4096", "31 bytes");
	put(path, 4097, 0600);
	refused(wide, "has too many bytes", "4097 bytes");
	put(path, 32, 0640);
	refused(setting, "is open to others (mode 0640)", "readable by the group");
	put(path, 32, 0604);
	refused(setting, "is open to others (mode 0604)", "readable by others");
	put(path, 32, 0600);
	chmod(tmpdir, 0777);
	refused(setting, "can be written by everybody", "in a directory others can write");
	chmod(tmpdir, 0755);
	ok(!offer(setting, 0, text) && !offer(setting, 1, other), "a private one is taken");
	like(text, "file ", "rank 0 says that it is in a file");
	ok(strlen(text) > 2 && !strcmp(text + strlen(text) - 2, " -"), "and nothing secret");
	ok(!take(setting, text, other, NULL, a) && !take(wide, text, other, NULL, b) && !memcmp(a, b, sizeof a),
	   "all have one key");
	put(path, 33, 0600);
	ok(!take(setting, text, other, NULL, b) && memcmp(a, b, sizeof a), "another content, another key");
	put(path, 32, 0600);
	setenv("SLURM_JOB_ID", "18", 1);
	ok(!offer(wide, 0, again) && !take(wide, again, other, NULL, b) && memcmp(a, b, sizeof a),
	   "another job, another key");
	ok(job_secret_alike("pmix x", "file", 4, &err) < 0, "ranks that take different ways are told");
	like(err.text, "rank 4 takes the secret by file, rank 0 by pmix", "which");
	return done_testing();
}
