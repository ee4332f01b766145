#include "spank/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGE_TIMEOUT 3600
#define RECORDS_DIR "/run/gradcomp"

/* The value when `arg` is NAME=value. */
static const char *value_of(const char *arg, const char *name)
{
	size_t n = strlen(name);
	return !strncmp(arg, name, n) && arg[n] == '=' ? arg + n + 1 : NULL;
}

static int take_path(char *out, const char *value)
{
	if (*value != '/' || strlen(value) >= PATH_MAX)
		return -1;
	strcpy(out, value);
	return 0;
}

static int take_account(char out[ACCOUNT_BYTES], const char *value)
{
	if (!*value || strlen(value) >= ACCOUNT_BYTES)
		return -1;
	strcpy(out, value);
	return 0;
}

static int take_seconds(int *out, const char *value)
{
	char *end;
	long n = strtol(value, &end, 10);
	if (*value < '0' || *value > '9' || *end || n > 30 * 86400)
		return -1;
	*out = (int)n;
	return 0;
}

void arguments_parse(arguments *a, int ac, char **av)
{
	enum { HELPER = 1, CONF = 2, TIMEOUT = 4, RECORDS = 8, PLAN_USER = 16, PYTHON = 32 };
	int seen = 0;

	memset(a, 0, sizeof *a);
	strcpy(a->helper, GRADCOMP_BINDIR "/gradcomp");
	strcpy(a->python, GRADCOMP_LIBDIR "/gradcomp/python");
	strcpy(a->records, RECORDS_DIR);
	a->stage_timeout = STAGE_TIMEOUT;
	for (int i = 0; i < ac; i++) {
		const char *value, *want = "an absolute path";
		int which = 0, bad = 0;
		if ((value = value_of(av[i], "helper"))) {
			which = HELPER;
			bad = take_path(a->helper, value);
		} else if ((value = value_of(av[i], "conf"))) {
			which = CONF;
			bad = take_path(a->conf, value);
		} else if ((value = value_of(av[i], "python"))) {
			which = PYTHON;
			bad = take_path(a->python, value) || strchr(value, ':');
		} else if ((value = value_of(av[i], "records"))) {
			which = RECORDS;
			bad = take_path(a->records, value);
		} else if ((value = value_of(av[i], "plan_user"))) {
			which = PLAN_USER;
			bad = take_account(a->plan_user, value);
			want = "the name of an account";
		} else if ((value = value_of(av[i], "stage_timeout"))) {
			which = TIMEOUT;
			bad = take_seconds(&a->stage_timeout, value);
			want = "seconds, from 0 (no limit) to 2592000";
		}
		if (!which)
			snprintf(a->error, sizeof a->error,
			         "plugstack.conf: unknown argument '%.200s' (known: helper=FILE conf=FILE "
			         "python=DIR records=DIR stage_timeout=SECONDS plan_user=ACCOUNT)",
			         av[i]);
		else if (bad)
			snprintf(a->error, sizeof a->error, "plugstack.conf: '%.200s' is not %s", av[i], want);
		else if (seen & which)
			snprintf(a->error, sizeof a->error, "plugstack.conf: '%.200s' repeats an argument", av[i]);
		if (a->error[0])
			return;
		seen |= which;
	}
}
