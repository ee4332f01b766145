/* The line in a job's comment: its words, and that what stands in the comment is handed back byte by byte, to the very
 * job, or not touched. squeue and scontrol are scripts here. */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "job/job_comment.h"
#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

static gradcomp_error e;

static void script(const char *name, const char *body)
{
	char path[100];
	FILE *f;
	snprintf(path, sizeof path, "%s/%s", tmpdir, name);
	f = fopen(path, "w");
	if (!f || fprintf(f, "#!/bin/sh\n%s\n", body) < 0 || fclose(f) || chmod(path, 0755))
		printf("Bail out! cannot write %s\n", path);
}

/* Returns what scontrol was called with last: its arguments, each in brackets. */
static const char *updated(void)
{
	static char text[2000], path[100];
	FILE *f;
	size_t n = 0;
	snprintf(path, sizeof path, "%s/updated", tmpdir);
	f = fopen(path, "r");
	if (f) {
		n = fread(text, 1, sizeof text - 1, f);
		fclose(f);
	}
	text[n] = '\0';
	unlink(path);
	return text;
}

static gradcomp_status leave(const char *squeue)
{
	script("squeue", squeue);
	updated();
	e.text[0] = '\0';
	return job_comment_leave("our line", &e);
}

static const char *long_text(size_t n)
{
	static char text[1200];
	snprintf(text, sizeof text, "head -c %zu /dev/zero | tr '\\0' x", n);
	return text;
}

static void test_line(void)
{
	char out[JOB_COMMENT_LINE];
	report_reducer r[2] = {
		{.asked = "none", .stats = {.steps = 7, .dense_bytes = 1e8, .wire_bytes = 1e8}},
		{.asked = "powersgd:\nrank=4", .stats = {.steps = 1200, .dense_bytes = 190e9, .wire_bytes = 12.2e9}}};
	report_job job = {.nranks = 4, .nnodes = 4, .reducers = r, .nreducers = 2};
	ok(job_comment_line(&job, out), "a job has a line");
	is_str(out, "gradcomp: powersgd:?rank=4, 12.3 GB sent instead of 190.1 GB, 1200 steps",
	       "with the figures of all reducers");
	job.failure = "a rank died";
	r[1].stats = (gradcomp_reducer_stats){.steps = 1, .dense_bytes = 2e15, .wire_bytes = 0};
	ok(job_comment_line(&job, out), "one that failed has one");
	is_str(out, "gradcomp: powersgd:?rank=4, 100.0 MB sent instead of 2000.0 TB, 1 step, failed", "which says so");
	char wide[400];
	memset(wide, 'x', sizeof wide - 1);
	wide[sizeof wide - 1] = '\0';
	r[1].asked = wide;
	ok(job_comment_line(&job, out) && strstr(out, ", 1 step, failed"), "a long SPEC is cut, the figures are not");
	job.nranks = 1;
	ok(!job_comment_line(&job, out), "a job of one rank has none");
	job.nranks = 4;
	job.nreducers = 0;
	ok(!job_comment_line(&job, out), "nor one that reduced nothing");
	job.nreducers = 2;
	setenv("SLURM_JOB_ID", "12;13", 1);
	ok(!job_comment_line(&job, out), "nor one whose number is none");
	setenv("SLURM_JOB_ID", "12", 1);
	setenv("SLURM_HET_SIZE", "2", 1);
	ok(!job_comment_line(&job, out), "nor a heterogeneous one");
	unsetenv("SLURM_HET_SIZE");
}

static void test_comment(void)
{
	script("scontrol", "cd \"${0%/*}\"; printf '[%s]' \"$@\" > updated");
	is_int(leave("echo '(null)'"), GRADCOMP_OK, "no comment yet: %s", e.text);
	is_str(updated(), "[update][JobId=12][Comment=our line]", "the line is all");
	is_int(leave("printf 'one\\n  two = %%s;\\n\\n'"), GRADCOMP_OK, "a comment of several lines: %s", e.text);
	is_str(updated(), "[update][JobId=12][Comment=one\n  two = %s;\n; our line]", "stays as it is");
	is_int(leave(long_text(990)), GRADCOMP_OK, "as long as may be: %s", e.text);
	is_int(strlen(updated()), strlen("[update][JobId=12][Comment=]") + 1000, "as long as may be: is kept");
	is_int(leave(long_text(991)), GRADCOMP_ERR_RANGE, "longer: %s", e.text);
	is_str(updated(), "", "longer: is left alone");
	setenv("SLURM_ARRAY_JOB_ID", "11", 1);
	setenv("SLURM_ARRAY_TASK_ID", "3", 1);
	is_int(leave("[ \"$*\" = '-h -j 11_3 -o %k' ] && echo mine"), GRADCOMP_OK, "a task of an array: %s", e.text);
	is_str(updated(), "[update][JobId=11_3][Comment=mine; our line]", "not the array");
	unsetenv("SLURM_ARRAY_JOB_ID");
	unsetenv("SLURM_ARRAY_TASK_ID");
}

static void test_refused(void)
{
	is_int(leave("echo 'slurm_load_jobs error: no' >&2; exit 1"), GRADCOMP_ERR_IO, "squeue that fails");
	is_str(e.text, "squeue: slurm_load_jobs error: no", "is quoted");
	is_str(updated(), "", "and what it said is no comment");
	signal(SIGCHLD, SIG_IGN);
	is_int(leave("echo 'slurm_load_jobs error: no' >&2; exit 1"), GRADCOMP_ERR_IO,
	       "where nobody learns how it ended");
	is_str(updated(), "", "neither");
	signal(SIGCHLD, SIG_DFL);
	is_int(leave("kill -9 $$"), GRADCOMP_ERR_IO, "squeue that is killed: %s", e.text);
	script("scontrol", "echo 'slurm_update error: Access/permission denied' >&2; exit 1");
	is_int(leave("echo mine"), GRADCOMP_ERR_IO, "scontrol that fails");
	is_str(e.text, "scontrol: slurm_update error: Access/permission denied", "is quoted, too");
	script("scontrol", "exec sleep 100");
	is_int(leave("echo mine"), GRADCOMP_ERR_TIMEOUT, "scontrol that hangs: %s", e.text);
	errno = 0;
	ok(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "no child is left");
	setenv("PATH", "/nowhere", 1);
	is_int(job_comment_leave("our line", &e), GRADCOMP_ERR_NOTFOUND, "no commands");
	is_str(e.text, "cannot run squeue: No such file or directory", "are named");
}

int main(void)
{
	char path[300];
	tmpdir_make("comment");
	snprintf(path, sizeof path, "%s:/usr/bin:/bin", tmpdir);
	setenv("PATH", path, 1);
	setenv("SLURM_JOB_ID", "12", 1);
	unsetenv("SLURM_ARRAY_JOB_ID");
	unsetenv("SLURM_ARRAY_TASK_ID");
	unsetenv("SLURM_HET_SIZE");
	test_line();
	test_comment();
	test_refused();
	return done_testing();
}
