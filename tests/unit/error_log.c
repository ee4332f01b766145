/* Error text and log lines: what fits, what is cleaned, who speaks. */
#include "base/error.h"
#include "base/log.h"

#include "tests/support/tap.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static void errors(void)
{
	gradcomp_error e;
	char longer[1000];
	is_int(error_set(NULL, GRADCOMP_ERR_IO, "x"), GRADCOMP_ERR_IO, "NULL is accepted");
	is_int(error_set(&e, GRADCOMP_ERR_RANGE, "%s is %d", "rank", 9), GRADCOMP_ERR_RANGE, "returns the status");
	is_int(e.status, GRADCOMP_ERR_RANGE, "keeps the status");
	is_str(e.text, "rank is 9", "keeps the text");
	error_set(&e, GRADCOMP_ERR_IO, "file: %s", e.text);
	is_str(e.text, "file: rank is 9", "may quote its own text");
	errno = ENOENT;
	error_errno(&e, GRADCOMP_ERR_IO, "/a/b");
	is_str(e.text, "/a/b: No such file or directory", "errno in words");
	is_int(errno, ENOENT, "errno is left alone");
	error_set(&e, GRADCOMP_ERR_IO, "a\nb\033[2Jc\177");
	is_str(e.text, "a?b?[2Jc?", "no newline, no control characters");
	memset(longer, 'x', sizeof longer);
	longer[sizeof longer - 1] = '\0';
	error_set(&e, GRADCOMP_ERR_IO, "%s", longer);
	is_int(strlen(e.text), sizeof e.text - 1, "cut to fit");
	is_str(e.text + sizeof e.text - 4, "...", "and says so");
	longer[sizeof e.text - 1] = '\0';
	error_set(&e, GRADCOMP_ERR_IO, "%s", longer);
	is_str(e.text, longer, "text that just fits is whole");
}

/* Returns what log_line writes to stderr. */
static char *logged(log_sink sink, gradcomp_log_level level, const char *text)
{
	static char out[4096];
	int pipe_fd[2], keep = dup(STDERR_FILENO);
	ssize_t n;
	if (pipe(pipe_fd) || dup2(pipe_fd[1], STDERR_FILENO) < 0)
		exit(2);
	log_line(&sink, level, "%s", text);
	dup2(keep, STDERR_FILENO);
	close(keep);
	close(pipe_fd[1]);
	n = read(pipe_fd[0], out, sizeof out - 1);
	out[n > 0 ? n : 0] = '\0';
	close(pipe_fd[0]);
	return out;
}

static void lines(void)
{
	char longer[3000];
	gradcomp_log_level level;
	gradcomp_error e;
	is_str(logged((log_sink){GRADCOMP_LOG_INFO, 0}, GRADCOMP_LOG_INFO, "hello"), "gradcomp: hello\n", "rank 0");
	is_str(logged((log_sink){GRADCOMP_LOG_INFO, -1}, GRADCOMP_LOG_INFO, "hello"), "gradcomp: hello\n",
	       "rank not known yet");
	is_str(logged((log_sink){GRADCOMP_LOG_INFO, 3}, GRADCOMP_LOG_INFO, "hello"), "", "info of another rank");
	is_str(logged((log_sink){GRADCOMP_LOG_INFO, 3}, GRADCOMP_LOG_ERROR, "bad"), "gradcomp: rank 3: bad\n",
	       "error of another rank");
	is_str(logged((log_sink){GRADCOMP_LOG_DEBUG, 3}, GRADCOMP_LOG_DEBUG, "d"), "gradcomp: rank 3: d\n",
	       "debug of another rank");
	is_str(logged((log_sink){GRADCOMP_LOG_WARN, 0}, GRADCOMP_LOG_INFO, "hello"), "", "below the level");
	is_str(logged((log_sink){GRADCOMP_LOG_INFO, 0}, GRADCOMP_LOG_WARN, "a\nb"), "gradcomp: a b\n", "one line");
	memset(longer, 'x', sizeof longer);
	longer[sizeof longer - 1] = '\0';
	char *out = logged((log_sink){GRADCOMP_LOG_INFO, 12}, GRADCOMP_LOG_ERROR, longer);
	ok(strlen(out) < 1025, "a long line is cut");
	is_str(out + strlen(out) - 4, "...\n", "and says so");

	is_int(log_level_parse("debug", &level, &e), 0, "debug");
	is_int(level, GRADCOMP_LOG_DEBUG, "debug");
	is_int(log_level_parse("loud", &level, &e), GRADCOMP_ERR_INVALID, "loud");
	like(e.text, "'loud' is not error, warn, info or debug", "says what is possible");
}

int main(void)
{
	errors();
	lines();
	return done_testing();
}
