#define _GNU_SOURCE
#include "job_secret.h"

#include "error.h"
#include "job_path.h"
#include "secure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_BYTES 128
#define FILE_MOST 4096

/* "SECRET/RUN/NAME": the secret in hexadecimal or "file", 32 random bytes in
 * hexadecimal, and who the job is. */

static int hex_read(const char *hex, unsigned char out[SECRET_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < SECRET_BYTES; i++) {
		const char *high = hex[2 * i] ? strchr(digits, hex[2 * i]) : NULL;
		const char *low = high && hex[2 * i + 1] ? strchr(digits, hex[2 * i + 1]) : NULL;

		if (!low)
			return -1;
		out[i] = (unsigned char)((high - digits) << 4 | (low - digits));
	}
	return 0;
}

/* Job and step; where a PMIx server is, its name for them. */
static void job_name(char out[NAME_BYTES])
{
	const char *space = getenv("PMIX_NAMESPACE"), *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");

	if (space)
		snprintf(out, NAME_BYTES, "%s", space);
	else
		snprintf(out, NAME_BYTES, "%s.%s", job ? job : "-", step ? step : "-");
	for (char *p = out; *p; p++)
		if (*p <= ' ' || *p > '~')
			*p = '_';
}

/* Nobody but its owner can have read it, and the owner is this user. */
static gradcomp_status file_private(const char *path, int fd, gradcomp_error *err)
{
	struct stat st;

	if (fstat(fd, &st))
		return error_errno(err, GRADCOMP_ERR_IO, "secret %s", path);
	if (st.st_uid != geteuid())
		return error_set(err, GRADCOMP_ERR_INSECURE, "secret %s belongs to user %u; it must belong to user %u", path,
		                 (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & 077)
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "secret %s is open to others (mode %04o); mend it with: chmod 600 %s, and write another one",
		                 path, (unsigned)(st.st_mode & 07777), path);
	return GRADCOMP_OK;
}

static gradcomp_status file_secret(const char *pattern, const unsigned char run[SECRET_BYTES],
                                   unsigned char prk[SECRET_BYTES], gradcomp_error *err)
{
	unsigned char content[FILE_MOST + 1];
	char *path = NULL, *real = NULL;
	ssize_t n = -1, got;
	int fd = -1;
	gradcomp_status st = job_path_expand("secret", pattern, &path, err);

	if (!st)
		st = secure_open(path, &fd, &real, err);
	if (!st)
		st = file_private(path, fd, err);
	for (n = 0; !st && n <= FILE_MOST; n += got) {
		got = read(fd, content + n, sizeof content - (size_t)n);
		if (got < 0)
			st = error_errno(err, GRADCOMP_ERR_IO, "secret %s", path);
		if (got <= 0)
			break;
	}
	if (!st && (n < SECRET_BYTES || n > FILE_MOST))
		st = error_set(err, GRADCOMP_ERR_INVALID, "secret %s has %s bytes; it must have %d to %d", path,
		               n > FILE_MOST ? "too many" : "too few", SECRET_BYTES, FILE_MOST);
	if (!st)
		secret_extract(run, SECRET_BYTES, content, (size_t)n, prk);
	secret_wipe(content, sizeof content);
	if (fd >= 0)
		close(fd);
	free(real);
	free(path);
	return st;
}

gradcomp_status job_secret_offer(const char *setting, int rank, char text[JOB_SECRET_TEXT], gradcomp_error *err)
{
	unsigned char secret[SECRET_BYTES] = {0}, run[SECRET_BYTES] = {0};
	int file = strcmp(setting, "pmix") != 0;
	char hex[2][2 * SECRET_BYTES + 1], name[NAME_BYTES];
	gradcomp_status st = secret_start(err);

	if (!st && file)
		st = file_secret(setting + 5, run, secret, err);
	if (!st && rank) {
		snprintf(text, JOB_SECRET_TEXT, "%s", file ? "file" : "pmix");
		goto done;
	}
	if (!st && !file)
		st = secret_random(secret, sizeof secret, err);
	if (!st)
		st = secret_random(run, sizeof run, err);
	if (st)
		goto done;
	sha256_hex(secret, hex[0]);
	sha256_hex(run, hex[1]);
	job_name(name);
	snprintf(text, JOB_SECRET_TEXT, "%s/%s/%s", file ? "file" : hex[0], hex[1], name);
	secret_wipe(hex, sizeof hex);
done:
	secret_wipe(secret, sizeof secret);
	return st;
}

gradcomp_status job_secret_alike(const char *text0, const char *text, int rank, gradcomp_error *err)
{
	int file0 = !strncmp(text0, "file/", 5), file = !strcmp(text, "file");

	if (file == file0)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "rank %d has security.secret=%s, rank 0 has %s: all ranks must have the same", rank,
	                 file ? "file:..." : "pmix", file0 ? "file:..." : "pmix");
}

gradcomp_status job_secret_take(const char *setting, const char *text, const char *space,
                                unsigned char key[SECRET_BYTES], gradcomp_error *err)
{
	unsigned char secret[SECRET_BYTES] = {0}, run[SECRET_BYTES], prk[SECRET_BYTES];
	const char *run_at = strchr(text, '/'), *name = run_at ? strchr(run_at + 1, '/') : NULL;
	int file = strcmp(setting, "pmix") != 0, theirs = !strncmp(text, "file/", 5);
	gradcomp_status st = secret_start(err);

	if (st)
		return st;
	if (!name || name - run_at != 2 * SECRET_BYTES + 1 || hex_read(run_at + 1, run) ||
	    (!theirs && (run_at - text != 2 * SECRET_BYTES || hex_read(text, secret))) || strlen(name + 1) >= NAME_BYTES)
		return error_set(err, GRADCOMP_ERR_INVALID, "the card of rank 0 has no secret");
	if (file != theirs)
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank 0 does not take the secret from where this rank does");
	else if (space && strcmp(space, name + 1))
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank 0 is of job %.100s, this rank of job %.100s", name + 1, space);
	else if (file)
		st = file_secret(setting + 5, run, prk, err);
	else
		secret_extract(run, sizeof run, secret, sizeof secret, prk);
	if (!st)
		secret_expand(prk, "gradcomp 2 job", name + 1, strlen(name + 1), key);
	secret_wipe(secret, sizeof secret);
	secret_wipe(prk, sizeof prk);
	return st;
}
