#include "config/settings.h"

#include <ctype.h>
#include <math.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/job_path.h"
#include "base/number.h"
#include "base/suggest.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "config/name_rules.h"
#include "config/policy.h"
#include "config/schedule_spec.h"
#include "config/spec.h"

static gradcomp_status check_spec(const char *value, gradcomp_error *err)
{
	char name[SPEC_NAME_MAX];
	return spec_name(value, name, err);
}

/* A SPEC, or several: by the names of tensors, or in a policy. */
static gradcomp_status check_compressor(const char *value, gradcomp_error *err)
{
	gradcomp_policy *p;
	name_rules rules;
	if (name_rules_is(value)) {
		gradcomp_status wrong = name_rules_parse(value, &rules, err);
		name_rules_clear(&rules);
		return wrong;
	}
	if (!policy_is(value))
		return check_spec(value, err);
	gradcomp_status st = policy_parse(value, &p, err);
	policy_free(p);
	return st;
}

/* Yes or no, or where else than at models. */
static gradcomp_status check_attach(const char *value, gradcomp_error *err)
{
	int64_t yes;
	if (spec_bool(value, &yes) || !strcmp(value, "backend"))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is not yes or no, nor backend", value);
}

/* A list of SPECs. */
static gradcomp_status check_specs(const char *value, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	const char *item;
	char one[256];
	size_t n;
	while (!st && (item = spec_list_next(&value, &n))) {
		if (n >= sizeof one)
			return error_set(err, GRADCOMP_ERR_INVALID, "'%.*s' is longer than 255 characters", (int)n,
			                 item);
		snprintf(one, sizeof one, "%.*s", (int)n, item);
		st = check_spec(one, err);
	}
	return st;
}

static gradcomp_status check_schedule(const char *value, gradcomp_error *err)
{
	schedule_spec s;
	gradcomp_status st = schedule_spec_parse(value, &s, err);
	if (!st)
		schedule_spec_clear(&s);
	return st;
}

static gradcomp_status check_report(const char *value, gradcomp_error *err)
{
	return *value ? job_path_check("report", value, err) : GRADCOMP_OK;
}

static gradcomp_status check_record(const char *value, gradcomp_error *err)
{
	return *value ? job_path_check("record", value, err) : GRADCOMP_OK;
}

static gradcomp_status check_trace(const char *value, gradcomp_error *err)
{
	return *value ? job_path_check("timeline", value, err) : GRADCOMP_OK;
}

/* A relative directory would make what runs depend on where the user stands. */
static gradcomp_status check_directories(const char *value, gradcomp_error *err)
{
	const char *p = value;
	for (;;) {
		size_t n = strcspn(p, ":");

		if (*p != '/')
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "'%s': '%.*s' is not an absolute path; directories are separated by ':'",
			                 value, (int)n, p);
		if (!p[n])
			return GRADCOMP_OK;
		p += n + 1;
	}
}

static gradcomp_status check_directory(const char *value, gradcomp_error *err)
{
	if (*value != '/')
		return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is not an absolute path", value);
	return GRADCOMP_OK;
}

/* Copies are removed from it, so it is no directory that holds anything else. */
static gradcomp_status check_cache(const char *value, gradcomp_error *err)
{
	if (*value == '/' && strspn(value, "/.") == strlen(value))
		return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is no directory for a cache: name one below /",
		                 value);
	return check_directory(value, err);
}

static gradcomp_status check_metrics(const char *value, gradcomp_error *err)
{
	return *value ? check_directory(value, err) : GRADCOMP_OK;
}

static gradcomp_status check_transports(const char *value, gradcomp_error *err)
{
	const char *p = value;
	for (;;) {
		size_t n = strcspn(p, ",");

		if (!(n == 3 && (!strncmp(p, "shm", 3) || !strncmp(p, "tcp", 3))) &&
		    !(n == 5 && !strncmp(p, "verbs", 5)))
			return error_set(
				err, GRADCOMP_ERR_INVALID,
				"'%s': '%.*s' is not a transport; write some of shm,tcp,verbs, separated by ','", value,
				(int)n, p);
		if (!p[n])
			return GRADCOMP_OK;
		p += n + 1;
	}
}

static gradcomp_status check_interface(const char *value, gradcomp_error *err)
{
	unsigned char ip[16];
	int bytes, prefix;
	if (strpbrk(value, ", \t;"))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "'%s' is several; name one interface, or one address block that has all of them",
		                 value);
	if (strchr(value, '/') ? number_block(value, ip, &bytes, &prefix) == NUMBER_OK : strlen(value) < IFNAMSIZ)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "'%s' is neither an address block such as 10.0.0.0/8 nor an interface such as eth0", value);
}

/* A whole number from `least` to `most` behind a ':'. */
static bool is_part(const char *text, size_t n, int least, int most)
{
	return n && n <= 3 && strspn(text, "0123456789") >= n && atoi(text) >= least && atoi(text) <= most;
}

/* Takes NAME, NAME:PORT and NAME:PORT:GID. */
static gradcomp_status check_device(const char *value, gradcomp_error *err)
{
	size_t n = strcspn(value, ":");
	const char *port = value[n] ? value + n + 1 : "1";
	size_t m = strcspn(port, ":");
	const char *gid = port[m] ? port + m + 1 : "0";
	if (n && n < 60 && is_part(port, m, 1, 999) && is_part(gid, strlen(gid), 0, 255))
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_INVALID,
		"'%s' is neither auto nor an RDMA device like mlx5_0, mlx5_0:1 (its port) or mlx5_0:1:3 (and the "
		"index of a GID, 0 to 255)",
		value);
}

static gradcomp_status check_threads(const char *value, gradcomp_error *err)
{
	if (thread_pool_parse(value))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is neither auto nor a number from 1 to %d", value,
	                 THREAD_POOL_MAX);
}

/* Bytes, or a part of what there is: 50%. */
static gradcomp_status check_part(const char *value, gradcomp_error *err)
{
	size_t n = strlen(value);
	char digits[4] = "";
	int64_t x;
	if (n >= 2 && n <= sizeof digits && value[n - 1] == '%')
		memcpy(digits, value, n - 1);
	if (number_int(digits, &x) == NUMBER_OK ? x >= 1 && x <= 90
	                                        : number_size(value, &x) == NUMBER_OK && x >= 1 << 20)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is neither bytes from 1M on nor a share from 1%% to 90%%",
	                 value);
}

static gradcomp_status check_secret(const char *value, gradcomp_error *err)
{
	if (!strcmp(value, "auto") || !strcmp(value, "pmix") || !strcmp(value, "munge") ||
	    !strncmp(value, "munge:/", 7) || !strncmp(value, "auto:/", 6))
		return GRADCOMP_OK;
	if (!strncmp(value, "file:/", 6))
		return job_path_check("secret", value + 5, err);
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "'%s' is none of auto, auto:SOCKET, pmix, munge, munge:SOCKET and file:PATH (absolute paths)",
	                 value);
}

static gradcomp_status check_ports(const char *value, gradcomp_error *err)
{
	uint16_t first, last;
	if (number_ports(value, &first, &last) == NUMBER_OK)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is no range of ports such as 60001-60200", value);
}

static gradcomp_status check_evict(const char *value, gradcomp_error *err)
{
	unsigned high, low;
	if (number_marks(value, &high, &low) == NUMBER_OK)
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_INVALID,
		"'%s' is not two percentages such as 95,80: copies are evicted above the first, down to the second",
		value);
}

static gradcomp_status check_share(const char *value, gradcomp_error *err)
{
	int64_t bytes;
	int percent;
	if (number_share(value, &bytes, &percent) == NUMBER_OK && (percent || bytes > 0))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "'%s' is neither a size such as 500G nor a share of the filesystem from 1%% to 100%%", value);
}

/* Paths and URLs, separated by ','. */
static gradcomp_status check_sources(const char *value, gradcomp_error *err)
{
	for (const char *p = value; *p;) {
		size_t n = strcspn(p, ",");

		if (*p != '/' && strncmp(p, "nfs://", 6))
			return error_set(
				err, GRADCOMP_ERR_INVALID,
				"'%.*s' is neither an absolute path nor nfs://SERVER/PATH; sources are separated "
				"by ',' without blanks",
				(int)n, p);
		p += n + (p[n] == ',');
	}
	return GRADCOMP_OK;
}

/* The next of names separated by ',' and blanks, of *n characters; NULL after the last. */
static const char *next_name(const char **list, size_t *n)
{
	const char *name = *list + strspn(*list, ", \t");
	*n = strcspn(name, ", \t");
	*list = name + *n;
	return *n ? name : NULL;
}

static bool names(const char *word, size_t n, const char *setting)
{
	if (n > 2 && !strncmp(word + n - 2, ".*", 2))
		return !strncmp(word, setting, n - 1);
	return strlen(setting) == n && !strncmp(word, setting, n);
}

bool settings_locked(const char *list, const char *name)
{
	const char *word;
	size_t n;
	while ((word = next_name(&list, &n)))
		if (names(word, n, name))
			return true;
	return false;
}

static gradcomp_status check_lock(const char *value, gradcomp_error *err)
{
	const char *word;
	char typed[SUGGEST_MAX];
	suggest near;
	size_t n;
	bool known;
	while ((word = next_name(&value, &n))) {
		snprintf(typed, sizeof typed, "%.*s", (int)n, word);
		suggest_start(&near, typed);
		known = 0;
		for (size_t i = 0; i < SET_COUNT; i++) {
			known |= names(word, n, settings_table[i].row.name);
			suggest_try(&near, settings_table[i].row.name);
		}
		if (!known)
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "no setting '%s'%s; write SECTION.KEY or SECTION.*, separated by ','", typed,
			                 suggest_text(&near));
	}
	return GRADCOMP_OK;
}

/* Texts of choices, each with the value that it means; NULL after the last. */
static const char *const log_levels[] = {[GRADCOMP_LOG_ERROR] = "error",
                                         [GRADCOMP_LOG_WARN] = "warn",
                                         [GRADCOMP_LOG_INFO] = "info",
                                         [GRADCOMP_LOG_DEBUG] = "debug",
                                         NULL};
static const char *const failure_modes[] = {[FAILURE_ABORT] = "abort", [FAILURE_SHRINK] = "shrink", NULL};
static const char *const reloads[] = {[RELOAD_AUTO] = "auto", [RELOAD_YES] = "yes", [RELOAD_NO] = "no", NULL};
static const char *const frame_modes[] = {
	[FRAMES_NONE] = "none", [FRAMES_MAC] = "mac", [FRAMES_ENCRYPT] = "encrypt", NULL};

#define TEXT(d) .type = GRADCOMP_PARAM_STRING, .def = d
#define SWITCH(d) .type = GRADCOMP_PARAM_BOOL, .def = d
#define CHOICE(d, of) .type = GRADCOMP_PARAM_CHOICE, .def = d, .choices = of
#define NUMBER(t, d, lo, hi) .type = GRADCOMP_PARAM_##t, .def = d, .min = lo, .max = hi
#define SETTING(id, n, kind, h, ...) [SET_##id] = {.row = {.name = n, kind, .help = h}, __VA_ARGS__},

/* DEFAULT_COMPRESSOR, DEFAULT_COLLECTIVE, DEFAULT_DEVICE_COLLECTIVE and DEFAULT_CANDIDATES are those of etc/gradcomp.conf.in. */
const setting settings_table[SET_COUNT] = {
#include "config/settings.def"
};

setting_id settings_find(const char *name)
{
	setting_id i = 0;
	while (i < SET_COUNT && strcmp(settings_table[i].row.name, name) != 0)
		i++;
	return i;
}

void settings_env(const setting *s, char out[SETTINGS_ENV_MAX])
{
	const char *name = s->row.name;
	if (s == &settings_table[SET_GRADCOMP_COMPRESSOR]) {
		snprintf(out, SETTINGS_ENV_MAX, "GRADCOMP");
		return;
	}
	if (!strncmp(name, "gradcomp.", 9))
		name += 9;
	snprintf(out, SETTINGS_ENV_MAX, "GRADCOMP_%s", name);
	for (char *p = out; *p; p++)
		*p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
}

/* Refuses what nobody has meant to write: characters that cannot be seen, and quotes, which would be part of the
 * value. */
static gradcomp_status check_typed(const char *name, const char *text, gradcomp_error *err)
{
	static const char *const quotes[] = {
		"\"", "'", "`", "\xe2\x80\x98", "\xe2\x80\x99", "\xe2\x80\x9c", "\xe2\x80\x9d", "\xc2\xab"};
	const char *what;
	int at = text_hidden(text, &what);
	if (at >= 0)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "%s: there is %s %s '%.*s', which cannot be seen: write the value anew", name, what,
		                 at ? "behind" : "before", at ? at : 80,
		                 at ? text : text + strcspn(text, "abcdefghijklmnopqrstuvwxyz0123456789/"));
	for (size_t i = 0; i < sizeof quotes / sizeof quotes[0]; i++)
		if (!strncmp(text, quotes[i], strlen(quotes[i])))
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "%s: %s is a quote, which would be part of the value: write it without", name,
			                 text);
	return GRADCOMP_OK;
}

gradcomp_status settings_check(const setting *s, const char *text, gradcomp_value *out, gradcomp_error *err)
{
	gradcomp_status st = check_typed(s->row.name, text, err);
	gradcomp_error inner;
	if (!st)
		st = spec_value(&s->row, text, out, err);
	if (st || !s->check)
		return st;
	st = s->check(text, &inner);
	return st ? error_set(err, st, "%s: %s", s->row.name, inner.text) : GRADCOMP_OK;
}
