#include "tools/config_check.h"

#include <errno.h>
#include <net/if.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/suggest.h"
#include "config/config.h"
#include "config/spec.h"
#include "gradcomp/gradcomp.h"
#include "gradcomp/stage.h"
#include "security/munge_seal.h"
#include "tools/commands.h"

typedef struct checking {
	const config *c;
	int wrong;
} checking;

/* "gradcomp: SETTING = VALUE (ORIGIN): ..." */
GRADCOMP_PRINTF(4, 5)
static void say(checking *k, bool note, setting_id id, const char *fmt, ...)
{
	char value[200];
	va_list ap;
	k->wrong += !note;
	fprintf(stderr, "gradcomp: %s%s = %s (%s): ", note ? "note: " : "", settings_table[id].row.name,
	        gradcomp_printable(config_str(k->c, id), value, sizeof value), config_origin(k->c, id));
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

#define wrong(k, id, ...) say(k, false, id, __VA_ARGS__)
#define remark(k, id, ...) say(k, true, id, __VA_ARGS__)

static bool given(const checking *k, setting_id id)
{
	return !config_is_default(k->c, id) && *config_str(k->c, id);
}

/* The text names setting and origin. */
static void say_error(checking *k, const gradcomp_error *err)
{
	k->wrong++;
	command_failed(err);
}

static void check_specs(checking *k)
{
	gradcomp_error err = {0};
	if (gradcomp_spec_check(NULL, NULL, &err))
		say_error(k, &err);
	if (gradcomp_schedule_check(NULL, &err))
		wrong(k, SET_GRADCOMP_SCHEDULE, "%s", err.text);
	if (given(k, SET_GRADCOMP_DEVICE_COLLECTIVE) &&
	    gradcomp_spec_check("none", config_str(k->c, SET_GRADCOMP_DEVICE_COLLECTIVE), &err))
		wrong(k, SET_GRADCOMP_DEVICE_COLLECTIVE, "%s", err.text);
}

/* The candidates of auto, SPEC or SPEC@COLLECTIVE, whether a job asks for auto now or not. */
static void check_candidates(checking *k)
{
	const char *list = config_str(k->c, SET_AUTO_CANDIDATES), *item;
	gradcomp_error err;
	size_t n;
	if (config_is_default(k->c, SET_AUTO_CANDIDATES))
		return;
	while ((item = spec_list_next(&list, &n))) {
		char *one = strndup(item, n), *at = one ? strchr(one, '@') : NULL;

		if (at)
			*at++ = 0;
		if (one && gradcomp_spec_check(one, at, &err))
			wrong(k, SET_AUTO_CANDIDATES, "%s", err.text);
		free(one);
	}
}

static void check_files(checking *k)
{
	static const setting_id files[] = {SET_GRADCOMP_REPORT, SET_GRADCOMP_RECORD, SET_GRADCOMP_TRACE};
	const char *secret = config_str(k->c, SET_SECURITY_SECRET), *cache = config_str(k->c, SET_STAGE_CACHE_DIR);
	const char *metrics = config_str(k->c, SET_REPORT_METRICS);
	struct stat st;
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		const char *path = config_str(k->c, files[i]), *slash = strrchr(path, '/');
		char *dir = slash && slash > path ? strndup(path, (size_t)(slash - path)) : NULL;

		/* A % may stand for the job. */
		if (dir && !strchr(dir, '%') && (stat(dir, &st) || !S_ISDIR(st.st_mode)))
			remark(k, files[i], "there is no directory %s here", dir);
		free(dir);
	}
	if (!strncmp(secret, "file:", 5) && access(secret + 5, R_OK))
		wrong(k, SET_SECURITY_SECRET, "cannot read %s: %s", secret + 5, strerror(errno));
	if (!strncmp(secret, "munge", 5) && !munge_built())
		wrong(k, SET_SECURITY_SECRET, "this gradcomp was built without munge");
	if (!stat(cache, &st) && !S_ISDIR(st.st_mode))
		wrong(k, SET_STAGE_CACHE_DIR, "%s is no directory", cache);
	if (*metrics && (stat(metrics, &st) || !S_ISDIR(st.st_mode)))
		remark(k, SET_REPORT_METRICS, "there is no directory %s here", metrics);
	for (const char *p = config_str(k->c, SET_GRADCOMP_PLUGIN_PATH);
	     !config_is_default(k->c, SET_GRADCOMP_PLUGIN_PATH) && *p;) {
		char *dir = strndup(p, strcspn(p, ":"));

		if (dir && stat(dir, &st))
			remark(k, SET_GRADCOMP_PLUGIN_PATH, "there is no directory %s here", dir);
		p += strcspn(p, ":");
		p += *p == ':';
		free(dir);
	}
}

static void check_site(checking *k)
{
	const char *interface = config_str(k->c, SET_TRANSPORT_INTERFACE);
	struct stat st;
	if (*interface && !strchr(interface, '/') && !if_nametoindex(interface))
		remark(k, SET_TRANSPORT_INTERFACE, "this node has no interface of that name");
	if (given(k, SET_TRANSPORT_VERBS_DEVICE) && strcmp(config_str(k->c, SET_TRANSPORT_VERBS_DEVICE), "auto") != 0 &&
	    !strstr(config_str(k->c, SET_TRANSPORT_ALLOW), "verbs"))
		wrong(k, SET_TRANSPORT_VERBS_DEVICE, "transport.allow (%s) has no verbs",
		      config_origin(k->c, SET_TRANSPORT_ALLOW));
	if (given(k, SET_STAGE_SHARED_USER) && !getpwnam(config_str(k->c, SET_STAGE_SHARED_USER)))
		wrong(k, SET_STAGE_SHARED_USER, "there is no such account");
	for (const char *p = config_str(k->c, SET_STAGE_SHARED); *p; p += strcspn(p, ","), p += *p == ',') {
		char *path = strndup(p, strcspn(p, ","));

		if (path && *path == '/' && stat(path, &st))
			remark(k, SET_STAGE_SHARED, "there is no %s here: %s", path, strerror(errno));
		free(path);
	}
}

static void check_together(checking *k)
{
	const config *c = k->c;
	if (config_float(c, SET_TRANSPORT_WAIT_TIMEOUT) < config_float(c, SET_TRANSPORT_TIMEOUT))
		wrong(k, SET_TRANSPORT_WAIT_TIMEOUT,
		      "it is less than transport.timeout, %s: ranks that live would be given up before dead ones",
		      config_str(c, SET_TRANSPORT_TIMEOUT));
	if (given(k, SET_GRADCOMP_MIN_RANKS) && strcmp(config_str(c, SET_GRADCOMP_ON_FAILURE), "shrink") != 0)
		remark(k, SET_GRADCOMP_MIN_RANKS, "it means something with gradcomp.on_failure=shrink only");
	if (config_int(c, SET_STAGE_PROLOG) && !*config_str(c, SET_STAGE_SHARED))
		wrong(k, SET_STAGE_PROLOG, "stage.shared names nothing that the prolog could stage");
}

int config_check(const config *c)
{
	static void (*const checks[])(checking *) = {check_specs, check_candidates, check_files, check_site,
	                                             check_together};
	checking k = {.c = c};

	for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
		checks[i](&k);
	return k.wrong;
}
