/* Files that appear when they are complete, or not at all. */
#include "base/outfile.h"

#include "tests/support/dir_entries.h"
#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static gradcomp_error e;
static char path[200];

/* Returns what stands in the folder's `name`. */
static const char *content(int dir, const char *name)
{
	static char text[100];
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	text[n < 0 ? 0 : n] = 0;
	return n < 0 ? strerror(errno) : text;
}

static void streams(int dir)
{
	outfile *f;
	snprintf(path, sizeof path, "%s/100%%", tmpdir);
	is_int(outfile_open("list", path, 4096, &f, &e), 0, "a name is taken as it is");
	is_str(outfile_path(f), path, "which it tells");
	is_int(faccessat(dir, "100%", F_OK, 0), -1, "nothing appears before its time");
	fputs("one\n", outfile_stream(f));
	is_int(outfile_close(f, &e), 0, "complete");
	is_str(content(dir, "100%"), "one\n", "it is there, without the room that was taken");
	is_int(outfile_open("list", path, 0, &f, &e), 0, "once more");
	fputs("two\n", outfile_stream(f));
	outfile_abandon(f);
	is_str(content(dir, "100%"), "one\n", "what is abandoned leaves what was there");
	is_int(entries(tmpdir), 1, "and nothing else");

	is_int(outfile_open("list", path, 0, &f, &e), 0, "a list whose disk");
	fputs("three\n", outfile_stream(f));
	close(fileno(outfile_stream(f)));
	is_int(outfile_close(f, &e), GRADCOMP_ERR_IO, "goes away");
	like(e.text, "/100% cannot be written: Bad file descriptor", "is an error that names it");
	is_str(content(dir, "100%"), "one\n", "and leaves what was there");
	is_int(entries(tmpdir), 1, "and nothing else");

	setenv("SLURM_JOB_ID", "12", 1);
	snprintf(path, sizeof path, "%s/job%%j", tmpdir);
	is_int(outfile_open_job("list", path, 0, &f, &e), 0, "the path of a job's");
	fputs("four\n", outfile_stream(f));
	is_int(outfile_close(f, &e), 0, "is filled in");
	is_str(content(dir, "job12"), "four\n", "and written");
	is_int(outfile_open_job("list", "a%x", 0, &f, &e), GRADCOMP_ERR_INVALID, "no such letter");
	unlinkat(dir, "job12", 0);
	unlinkat(dir, "100%", 0);
}

static void bytes_at_once(int dir)
{
	struct rlimit none = {0, 0}, before;
	struct stat st;
	umask(022);
	is_int(outfile_put(dir, "note", "old\n", 4), 0, "a note");
	is_str(content(dir, "note"), "old\n", "is there");
	is_int(fstatat(dir, "note", &st, 0) ? -1 : (int)(st.st_mode & 07777), 0644, "for all to read");
	is_int(linkat(dir, "note", dir, "copy", 0), 0, "it has another name");
	is_int(outfile_put(dir, "note", "new\n", 4), 0, "and another note takes its place");
	is_str(content(dir, "note"), "new\n", "which is there");
	is_str(content(dir, "copy"), "old\n", "under this name alone");

	/* A disk that is full, as far as a process can tell. */
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	none.rlim_max = before.rlim_max;
	setrlimit(RLIMIT_FSIZE, &none);
	is_int(outfile_put(dir, "note", "lost\n", 5), -1, "on a full disk");
	is_int(errno, EFBIG, "it is an error");
	setrlimit(RLIMIT_FSIZE, &before);
	is_str(content(dir, "note"), "new\n", "what was there stays");
	is_int(mkdirat(dir, "sub", 0755), 0, "a folder");
	is_int(outfile_put(dir, "sub", "x", 1), -1, "is not replaced");
	is_int(errno, EISDIR, "which is an error");
	is_int(entries(tmpdir), 3, "nothing else is left");
	is_int(outfile_put(-1, "note", "x", 1), -1, "no folder");
	is_int(errno, EBADF, "is an error");
	unlinkat(dir, "note", 0);
	unlinkat(dir, "copy", 0);
	unlinkat(dir, "sub", AT_REMOVEDIR);
}

int main(void)
{
	int dir;
	tmpdir_make("outfile");
	dir = open(tmpdir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	streams(dir);
	bytes_at_once(dir);
	close(dir);
	return done_testing();
}
