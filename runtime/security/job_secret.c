#define _GNU_SOURCE
#include "security/job_secret.h"

#include "base/error.h"
#include "base/sha256.h"
#include "base/job_path.h"
#include "security/munge_seal.h"
#include "base/secure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_BYTES 128
#define FILE_MOST 4096

/* A rank's text is "SOURCE"; rank 0's "SOURCE RUN NAME SECRET": 32 random bytes in
 * hexadecimal, the name of the job, and the secret in hexadecimal (pmix), in a credential
 * (munge) or "-" (file). */
typedef enum source { SOURCE_PMIX, SOURCE_MUNGE, SOURCE_FILE, SOURCES } source;
static const char *const source_name[SOURCES] = {"pmix", "munge", "file"};

static source source_of(const char *text)
{
	size_t n = strcspn(text, " :");
	int src = 0;

	while (src < SOURCES && (strlen(source_name[src]) != n || strncmp(text, source_name[src], n)))
		src++;
	return (source)src;
}

/* munged's socket, out of munge or munge:PATH. */
static const char *source_socket(const char *setting)
{
	return strncmp(setting, "munge:", 6) ? "" : setting + 6;
}

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

/* With auto, under Slurm: a source that no other user of the nodes can read. */
static gradcomp_status source_choose(const char *setting, const char *space, const log_sink *log,
                                  const unsigned char secret[SECRET_BYTES], char sealed[MUNGE_TEXT], source *src,
                                  gradcomp_error *err)
{
	gradcomp_error why;

	*src = source_of(setting);
	if (*src == SOURCE_MUNGE)
		return munge_seal(source_socket(setting), secret, sealed, err);
	if (*src != SOURCES)
		return GRADCOMP_OK;
	*src = SOURCE_PMIX;
	if (!space || !getenv("SLURM_JOB_ID"))
		return GRADCOMP_OK;
	if (!munge_seal("", secret, sealed, &why))
		*src = SOURCE_MUNGE;
	else
		log_line(log, GRADCOMP_LOG_DEBUG, "other users of the nodes can ask PMIx for the job's secret: %s", why.text);
	return GRADCOMP_OK;
}

gradcomp_status job_secret_offer(const char *setting, int rank, const char *space, const log_sink *log,
                                 char text[JOB_SECRET_TEXT], gradcomp_error *err)
{
	unsigned char secret[SECRET_BYTES] = {0}, run[SECRET_BYTES] = {0};
	char hex[2][2 * SECRET_BYTES + 1], name[NAME_BYTES], sealed[MUNGE_TEXT];
	gradcomp_status st = secret_random(secret, sizeof secret, err);
	source src = SOURCE_PMIX;

	if (!st)
		st = secret_random(run, sizeof run, err);
	if (!st)
		st = source_choose(setting, space, log, secret, sealed, &src, err);
	if (!st && src == SOURCE_FILE)
		st = file_secret(setting + 5, run, secret, err);
	if (st)
		goto done;
	if (rank) {
		snprintf(text, JOB_SECRET_TEXT, "%s", source_name[src]);
		goto done;
	}
	sha256_hex(secret, hex[0]);
	sha256_hex(run, hex[1]);
	job_name(name);
	snprintf(text, JOB_SECRET_TEXT, "%s %s %s %s", source_name[src], hex[1], name,
	         src == SOURCE_PMIX ? hex[0] : src == SOURCE_MUNGE ? sealed : "-");
	secret_wipe(hex, sizeof hex);
done:
	secret_wipe(secret, sizeof secret);
	return st;
}

gradcomp_status job_secret_alike(const char *text0, const char *text, int rank, gradcomp_error *err)
{
	source src0 = source_of(text0), src = source_of(text);

	if (src0 == SOURCES || src == SOURCES)
		return error_set(err, GRADCOMP_ERR_INVALID, "the endpoint record of rank %d has no secret", src0 == SOURCES ? 0 : rank);
	if (src == src0)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "rank %d takes the secret by %s, rank 0 by %s: security.secret must be the same on all ranks%s",
	                 rank, source_name[src], source_name[src0],
	                 src == SOURCE_MUNGE || src0 == SOURCE_MUNGE ? ", and munged run on all nodes or on none" : "");
}

gradcomp_status job_secret_take(const char *setting, const char *text0, const char *mine, const char *space,
                                unsigned char key[SECRET_BYTES], gradcomp_error *err)
{
	unsigned char secret[SECRET_BYTES] = {0}, run[SECRET_BYTES], prk[SECRET_BYTES];
	char kind[8], hex[2 * SECRET_BYTES + 1], name[NAME_BYTES];
	source src = source_of(mine);
	gradcomp_status st = GRADCOMP_OK;
	int at = 0;

	/* The limits are those of kind, hex and name. */
	if (sscanf(text0, "%7s %64s %127s %n", kind, hex, name, &at) != 3 || !at || strlen(hex) != sizeof hex - 1 ||
	    hex_read(hex, run) || source_of(text0) != src ||
	    (src == SOURCE_PMIX && (strlen(text0 + at) != 2 * SECRET_BYTES || hex_read(text0 + at, secret))))
		return error_set(err, GRADCOMP_ERR_INVALID, "the endpoint record of rank 0 has no secret");
	if (space && strcmp(space, name))
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank 0 is of job %.100s, this rank of job %.100s", name, space);
	if (!st && src == SOURCE_MUNGE)
		st = munge_open(source_socket(setting), text0 + at, secret, err);
	if (!st && src == SOURCE_FILE)
		st = file_secret(setting + 5, run, prk, err);
	else if (!st)
		secret_extract(run, sizeof run, secret, sizeof secret, prk);
	if (!st)
		secret_expand(prk, "gradcomp 2 job", name, strlen(name), key);
	secret_wipe(secret, sizeof secret);
	secret_wipe(prk, sizeof prk);
	return st;
}
