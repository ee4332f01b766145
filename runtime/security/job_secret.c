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
static const char *const source_name[SOURCES] = {
	[SOURCE_PMIX] = "pmix", [SOURCE_MUNGE] = "munge", [SOURCE_FILE] = "file"};

static source source_of(const char *text)
{
	size_t n = strcspn(text, " :");
	int src = 0;
	while (src < SOURCES && (strlen(source_name[src]) != n || strncmp(text, source_name[src], n)))
		src++;
	return (source)src;
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
		return error_set(err, GRADCOMP_ERR_INSECURE, "secret %s belongs to user %u; it must belong to user %u",
		                 path, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & 077)
		return error_set(
			err, GRADCOMP_ERR_INSECURE,
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

/* Describes the credential, which is good for the secret of one run of one job and step. */
static munge_request sealed_for(const char *setting, const char *name, const char *run_hex, double patience,
                                const log_sink *log, char purpose[MUNGE_PURPOSE])
{
	snprintf(purpose, MUNGE_PURPOSE, "secret of job %s, run %s", name, run_hex);
	return (munge_request){.socket = munge_socket(setting), .purpose = purpose, .patience = patience, .log = log};
}

/* auto: in a step of Slurm, whose PMIx server answers every user of the node, what nobody else
 * can read; elsewhere what there is. Never less because munged does not serve. */
static source source_choose(const char *setting, const char *space, int rank, const log_sink *log)
{
	source src = source_of(setting);
	if (src != SOURCES)
		return src;
	if (!space || !getenv("SLURM_JOB_ID"))
		return SOURCE_PMIX;
	if (munge_built())
		return SOURCE_MUNGE;
	if (rank == 0)
		log_line(
			log, GRADCOMP_LOG_WARN,
			"other users of the nodes can ask PMIx for the job's secret: this gradcomp was built without munge "
			"(security.secret=pmix says that this is wanted, file:PATH does without both)");
	return SOURCE_PMIX;
}

gradcomp_status job_secret_offer(const char *setting, int rank, const char *space, double patience, const log_sink *log,
                                 char text[JOB_SECRET_TEXT], gradcomp_error *err)
{
	unsigned char secret[SECRET_BYTES] = {0}, run[SECRET_BYTES] = {0};
	char hex[2][2 * SECRET_BYTES + 1], name[NAME_BYTES], sealed[MUNGE_TEXT], purpose[MUNGE_PURPOSE];
	gradcomp_status st = secret_random(secret, sizeof secret, err);
	source src = source_choose(setting, space, rank, log);
	if (!st)
		st = secret_random(run, sizeof run, err);
	sha256_hex(run, hex[1]);
	job_name(name);
	if (!st && src == SOURCE_MUNGE) {
		munge_request q = sealed_for(setting, name, hex[1], patience, log, purpose);
		gradcomp_error why = {0};

		st = munge_seal(&q, secret, sealed, &why);
		if (st)
			error_set(err, st, "%.300s%s", why.text,
			          source_of(setting) == SOURCE_MUNGE
			                  ? ""
			                  : "; security.secret=auto wants munge in a Slurm step (pmix does without "
			                    "it, where the nodes have no other users)");
	}
	if (!st && src == SOURCE_FILE)
		st = file_secret(setting + 5, run, secret, err);
	if (st)
		goto done;
	if (rank) {
		snprintf(text, JOB_SECRET_TEXT, "%s", source_name[src]);
		goto done;
	}
	sha256_hex(secret, hex[0]);
	snprintf(text, JOB_SECRET_TEXT, "%s %s %s %s", source_name[src], hex[1], name,
	         src == SOURCE_PMIX    ? hex[0]
	         : src == SOURCE_MUNGE ? sealed
	                               : "-");
	secret_wipe(hex, sizeof hex);
done:
	secret_wipe(secret, sizeof secret);
	return st;
}

gradcomp_status job_secret_alike(const char *text0, const char *text, int rank, gradcomp_error *err)
{
	source src0 = source_of(text0), src = source_of(text);
	if (src0 == SOURCES || src == SOURCES)
		return error_set(err, GRADCOMP_ERR_INVALID, "the endpoint record of rank %d has no secret",
		                 src0 == SOURCES ? 0 : rank);
	if (src == src0)
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_MISMATCH,
		"rank %d takes the secret by %s, rank 0 by %s: security.secret must be the same on all ranks%s", rank,
		source_name[src], source_name[src0],
		src == SOURCE_MUNGE || src0 == SOURCE_MUNGE ? " (auto is munge in a Slurm step alone)" : "");
}

/* Steps of one job may make one job of gradcomp through a store; jobs of Slurm may not. */
static size_t job_bytes(const char *name)
{
	const char *step = strrchr(name, '.');
	return step ? (size_t)(step - name) : strlen(name);
}

static gradcomp_status open_sealed(const char *setting, const char *name, const char *run_hex, const char *sealed,
                                   double patience, const log_sink *log, unsigned char secret[SECRET_BYTES],
                                   gradcomp_error *err)
{
	char own[NAME_BYTES], purpose[MUNGE_PURPOSE];
	munge_request q = sealed_for(setting, name, run_hex, patience, log, purpose);
	job_name(own);
	if (job_bytes(own) != job_bytes(name) || strncmp(own, name, job_bytes(name)))
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"rank 0 has sealed the secret of job %.100s, this rank is of job %.100s: a job over several jobs of "
			"Slurm takes its secret from a file (security.secret=file:PATH)",
			name, own);
	return munge_open(&q, sealed, secret, err);
}

gradcomp_status job_secret_take(const char *setting, const char *text0, const char *mine, const char *space,
                                double patience, const log_sink *log, unsigned char key[SECRET_BYTES],
                                gradcomp_error *err)
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
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank 0 is of job %.100s, this rank of job %.100s", name,
		               space);
	if (!st && src == SOURCE_MUNGE)
		st = open_sealed(setting, name, hex, text0 + at, patience, log, secret, err);
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
