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
#include "config/schedule_spec.h"
#include "config/spec.h"

static gradcomp_status check_spec(const char *value, gradcomp_error *err)
{
	char name[SPEC_NAME_MAX];

	return spec_name(value, name, err);
}

/* A list of SPECs. */
static gradcomp_status check_specs(const char *value, gradcomp_error *err)
{
	gradcomp_status status = GRADCOMP_OK;
	const char *item;
	char one[256];
	size_t n;

	while (!status && (item = spec_list_next(&value, &n))) {
		if (n >= sizeof one)
			return error_set(err, GRADCOMP_ERR_INVALID, "'%.*s' is longer than 255 characters", (int)n,
			                 item);
		snprintf(one, sizeof one, "%.*s", (int)n, item);
		status = check_spec(one, err);
	}
	return status;
}

static gradcomp_status check_schedule(const char *value, gradcomp_error *err)
{
	schedule_spec s;
	gradcomp_status status = schedule_spec_parse(value, &s, err);

	if (!status)
		schedule_spec_clear(&s);
	return status;
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

/* NAME or NAME:PORT. */
static gradcomp_status check_device(const char *value, gradcomp_error *err)
{
	size_t n = strcspn(value, ":");
	const char *port = value[n] ? value + n + 1 : "1";

	if (n && n < 60 && strlen(port) <= 3 && strspn(port, "0123456789") == strlen(port) && atoi(port) > 0)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is neither auto nor an RDMA device like mlx5_0 or mlx5_0:1",
	                 value);
}

static gradcomp_status check_gid(const char *value, gradcomp_error *err)
{
	if (!strcmp(value, "auto") ||
	    (*value && strlen(value) <= 3 && strspn(value, "0123456789") == strlen(value) && atoi(value) <= 255))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is neither auto nor the index of a GID, 0 to 255", value);
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

static int names(const char *word, size_t n, const char *setting)
{
	if (n > 2 && !strncmp(word + n - 2, ".*", 2))
		return !strncmp(word, setting, n - 1);
	return strlen(setting) == n && !strncmp(word, setting, n);
}

int settings_locked(const char *list, const char *name)
{
	const char *word;
	size_t n;

	while ((word = next_name(&list, &n)))
		if (names(word, n, name))
			return 1;
	return 0;
}

static gradcomp_status check_lock(const char *value, gradcomp_error *err)
{
	const char *word;
	char typed[SUGGEST_MAX];
	suggest near;
	size_t n;
	int known;

	while ((word = next_name(&value, &n))) {
		snprintf(typed, sizeof typed, "%.*s", (int)n, word);
		suggest_start(&near, typed);
		known = 0;
		for (size_t i = 0; i < settings_count; i++) {
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

/* In the order of gradcomp_log_level. */
static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
/* In the order of failure_mode in job/job.h. */
static const char *const failure_modes[] = {"abort", "shrink", NULL};
/* In the order of reload_mode in io/dataset/dataset_internal.h. */
static const char *const reloads[] = {"auto", "yes", "no", NULL};
/* In the order of zerocopy_mode in transport/transport.h. */
static const char *const zerocopy_modes[] = {"auto", "yes", "no", NULL};
/* In the order of frames_mode in transport/transport.h. */
static const char *const frame_modes[] = {"none", "mac", "encrypt", NULL};

#define TEXT(n, d, h) .row = {.name = n, .type = GRADCOMP_PARAM_STRING, .def = d, .help = h}
#define NUMBER(t, n, d, lo, hi, h) \
	.row = {.name = n, .type = GRADCOMP_PARAM_##t, .def = d, .min = lo, .max = hi, .help = h}

/* DEFAULT_COMPRESSOR, DEFAULT_COLLECTIVE, DEFAULT_DEVICE_COLLECTIVE and DEFAULT_CANDIDATES are those of etc/gradcomp.conf.in. */
const setting settings_table[] = {
	{TEXT("gradcomp.compressor", DEFAULT_COMPRESSOR, "SPEC of the compressor"), .check = check_spec},
	{TEXT("gradcomp.collective", DEFAULT_COLLECTIVE, "SPEC of the collective"), .check = check_spec},
	{TEXT("gradcomp.device_collective", DEFAULT_DEVICE_COLLECTIVE,
              "SPEC of the collective for gradients on a GPU, where none is named"),
         .check = check_spec},
	{TEXT("gradcomp.schedule", "fixed",
              "how gradients are merged into messages: wfbp, single, fixed[:bytes=25M], mgwfbp[:greedy], "
              "omgs[:greedy], auto, plan:file=FILE"),
         .check = check_schedule},
	{TEXT("gradcomp.record", "", "file that the model of this job is written to, for gradcomp plan; empty: none"),
         .check = check_record},
	{TEXT("gradcomp.trace", "", "file of the job's timeline (Chrome trace JSON); empty: none"),
         .check = check_trace},
	{TEXT("gradcomp.report", "", "file of the job's report, %j is the job, %s the step; empty: none"),
         .check = check_report},
	{.row = {.name = "gradcomp.auto_attach",
                 .type = GRADCOMP_PARAM_BOOL,
                 .def = "yes",
                 .help = "models of PyTorch programs that do not call attach() are attached at their first pass"}},
	{.row = {.name = "gradcomp.verify",
                 .type = GRADCOMP_PARAM_BOOL,
                 .def = "no",
                 .help = "every step is looked at: averages that differ over ranks, NaN made of finite gradients, lost gradients end the job"}},
	{.row = {.name = "gradcomp.on_failure",
                 .type = GRADCOMP_PARAM_CHOICE,
                 .def = "abort",
                 .choices = failure_modes,
                 .help = "when a rank is lost: the job ends, or may go on without it (gradcomp_job_shrink)"}},
	{NUMBER(INT, "gradcomp.min_ranks", "1", 1, 1 << 24,
                "with gradcomp.on_failure=shrink: fewer ranks than that end the job")},
	{.row = {.name = "gradcomp.log",
                 .type = GRADCOMP_PARAM_CHOICE,
                 .def = "info",
                 .choices = log_levels,
                 .help = "the most verbose level that is printed"}},
	{TEXT("gradcomp.plugin_path", GRADCOMP_PLUGINDIR,
              "directories with compressors/NAME.so and collectives/NAME.so, separated by ':'"),
         .check = check_directories, .separator = ':'},
	{TEXT("gradcomp.lock", "",
              "settings that hold as this file has them, or by default, against everybody: section.key or section.*, separated by ','"),
         .check = check_lock, .separator = ',', .site = 1, .fixed = 1},

	{NUMBER(FLOAT, "transport.timeout", "30", 0.1, 86400,
                "seconds to join the job, and of silence after which a rank counts as dead")},
	{NUMBER(FLOAT, "transport.wait_timeout", "1800", 0.1, 604800,
                "seconds a collective or a dataset waits for a rank that lives but does not take part")},
	{NUMBER(INT, "transport.streams", "1", 1, 16, "TCP connections between two ranks, a channel")},
	{NUMBER(SIZE, "transport.chunk", "256K", 4096, 1 << 26, "bytes of a piece in a pipelined transfer")},
	{NUMBER(INT, "transport.spin_us", "50", 0, 1000000, "microseconds a wait spins before it sleeps")},
	{TEXT("transport.interface", "",
              "interface or network (eth1, 10.1.0.0/16) for TCP; empty: the one that leads to the other nodes"),
         .check = check_interface},
	{TEXT("transport.allow", "shm,tcp,verbs", "transports that may be used, separated by ','"),
         .check = check_transports, .separator = ','},
	{.row = {.name = "transport.cma",
                 .type = GRADCOMP_PARAM_BOOL,
                 .def = "no",
                 .help = "read large messages out of a neighbour's memory (process_vm_readv)"}},
	{TEXT("transport.verbs_device", "auto",
              "RDMA device and port for verbs (mlx5_0, mlx5_0:1); auto: the first active one"),
         .check = check_device},
	{TEXT("transport.verbs_gid", "auto",
              "index of the GID for verbs; auto: the RoCE v2 one of an address that transport.interface names"),
         .check = check_gid},
	{NUMBER(SIZE, "transport.verbs_memory", "64M", 1 << 20, 1LL << 40,
                "bytes of registered memory that a rank's links over verbs may use")},
	{.row = {.name = "transport.zerocopy",
                 .type = GRADCOMP_PARAM_CHOICE,
                 .def = "auto",
                 .choices = zerocopy_modes,
                 .help = "long messages leave straight from their buffers over TCP; auto: unless the kernel copies after all"}},

	{.row = {.name = "security.frames",
                 .type = GRADCOMP_PARAM_CHOICE,
                 .def = "none",
                 .choices = frame_modes,
                 .help = "what ranks send over a network after the hand-shake: as it is, authenticated, or encrypted"},
         .fixed = 1},
	{TEXT("security.secret", "auto",
              "how the job's secret comes to the ranks: pmix, munge (sealed), munge:SOCKET, file:PATH; auto, auto:SOCKET: munge in a Slurm step"),
         .check = check_secret, .fixed = 1},

	{NUMBER(SIZE, "reducer.first_bucket_bytes", "1M", 1, 1LL << 40,
                "bytes of gradients (as floats) in the first bucket, so that sending starts early")},
	{NUMBER(SIZE, "reducer.bucket_bytes", "25M", 1, 1LL << 40, "bytes of gradients that are reduced together")},

	{TEXT("report.metrics", "",
              "directory where jobs and stagers leave their figures for gradcomp metrics; empty: none"),
         .check = check_metrics, .site = 1},
	{.row = {.name = "report.comment",
                 .type = GRADCOMP_PARAM_BOOL,
                 .def = "no",
                 .help = "rank 0 leaves a line in the job's comment in Slurm when the job ends"},
         .site = 1},
	{.row = {.name = "report.live",
                 .type = GRADCOMP_PARAM_BOOL,
                 .def = "yes",
                 .help = "rank 0 answers gradcomp watch of the job's user on its node"}},

	{NUMBER(INT, "trace.events", "20000", 1, 1e8,
                "events of a rank that the timeline keeps; then those of the oldest steps are dropped")},
	{NUMBER(INT, "trace.ranks", "256", 1, 65536, "ranks of the timeline: the first so many")},

	{TEXT("auto.candidates", DEFAULT_CANDIDATES,
              "what --gradcomp=auto chooses from, SPECs or SPEC@COLLECTIVE separated by commas; the first is its base"),
         .check = check_specs, .separator = ','},
	{TEXT("auto.allow", "", "compressors that auto may use beside its base, a,b,c; empty: all candidates"),
         .separator = ','},
	{TEXT("auto.deny", "", "compressors that auto may not use, a,b,c"), .separator = ','},
	{NUMBER(FLOAT, "auto.max_error", "0.995", 0.001, 100,
                "share of a gradient that may stay in error memory before auto turns compression off")},
	{NUMBER(FLOAT, "auto.margin", "0.05", 0, 1,
                "least gain, as a share of a step, for which auto tries a candidate")},
	{NUMBER(INT, "auto.window", "8", 3, 64, "steps by which auto judges a candidate")},
	{NUMBER(INT, "auto.interval", "500", 20, 1000000,
                "steps after which auto compares with dense again; grows while it wins")},

	{NUMBER(INT, "schedule.profile_steps", "20", 1, 200,
                "steps that are measured before a plan of messages is made")},
	{NUMBER(INT, "schedule.replan_steps", "100", 4, 1000000000,
                "steps after which measured times are looked at again")},
	{NUMBER(INT, "schedule.trial_steps", "8", 0, 10000,
                "steps of each of two plans that are predicted to be about as good; fewer than 4: not compared")},
	{NUMBER(FLOAT, "schedule.drift", "0.25", 0.01, 100, "share by which times must have changed for a new plan")},

	{TEXT("operators.threads", "auto",
              "threads that share the work of large operators; auto: as many CPUs as Slurm gives the task"),
         .check = check_threads},

	{TEXT("stage.cache_dir", "/var/tmp/gradcomp", "directory of the node's cache of staged data"),
         .check = check_cache},
	{NUMBER(SIZE, "stage.max_bytes", "0", 0, INFINITY, "bytes of the largest dataset that is staged; 0: no limit"),
         .fixed = 1},
	{NUMBER(INT, "stage.workers", "2", 1, 64, "threads that copy when a dataset is staged")},
	{NUMBER(FLOAT, "stage.source_timeout", "60", 1, 86400,
                "seconds an NFS server may be away while it is staged from")},
	{TEXT("stage.cache_bytes", "90%",
              "what a user's area of the cache may take: a size, or a share of the filesystem"),
         .check = check_share, .fixed = 1},
	{NUMBER(INT, "stage.high_mark", "95", 1, 100, "percent of cache_bytes above which copies are evicted")},
	{NUMBER(INT, "stage.low_mark", "80", 1, 100, "percent of cache_bytes down to which copies are evicted")},
	{NUMBER(SIZE, "stage.user_bytes", "0", 0, INFINITY, "quota of each user in the cache; 0: none"), .fixed = 1},
	{TEXT("stage.shared", "", "sources whose copies all users of a node share, separated by ','"),
         .check = check_sources, .separator = ',', .site = 1},
	{TEXT("stage.shared_user", "nobody", "the account that stages what is shared"), .site = 1},
	{.row = {.name = "stage.together",
                 .type = GRADCOMP_PARAM_BOOL,
                 .def = "yes",
                 .help = "the nodes of a step read a source once and exchange it; no: each reads all of it"}},
	{NUMBER(FLOAT, "stage.rendezvous_timeout", "300", 1, 86400,
                "seconds the nodes of a step wait for each other to stage together")},
	{TEXT("stage.rendezvous_ports", "",
              "ports beside srun where the nodes of a step meet, 60001-60200; empty: any free one"),
         .check = check_ports},
	{.row = {.name = "stage.prolog",
                 .type = GRADCOMP_PARAM_BOOL,
                 .def = "no",
                 .help = "the prolog of every job stages what is shared"},
         .site = 1},
	{NUMBER(INT, "stage.prolog_timeout", "240", 1, 86400,
                "seconds the prolog may stage; then the job starts without"),
         .site = 1},

	{TEXT("dataset.memory", "50%",
              "bytes that a node keeps of a dataset's values, or a share of its free memory, 50%"),
         .check = check_part},
	{NUMBER(INT, "dataset.prefetch", "256", 1, 1 << 20,
                "samples of a dataset that a rank loads or fetches before they are asked for")},
	{NUMBER(INT, "dataset.connections", "256", 1, 1 << 20,
                "connections that a rank keeps to other nodes for the values of a dataset; above that the least recently used is closed")},
	{.row = {.name = "dataset.reload",
                 .type = GRADCOMP_PARAM_CHOICE,
                 .def = "auto",
                 .choices = reloads,
                 .help = "values of other nodes are loaded anew where that is faster than fetching them; auto: if the program says that they can be"}},
};
const size_t settings_count = sizeof settings_table / sizeof settings_table[0];

int settings_find(const char *name)
{
	for (size_t i = 0; i < settings_count; i++)
		if (!strcmp(settings_table[i].row.name, name))
			return (int)i;
	return -1;
}

void settings_env(const setting *s, char out[SETTINGS_ENV_MAX])
{
	const char *name = s->row.name;

	if (!strcmp(name, "gradcomp.compressor")) {
		snprintf(out, SETTINGS_ENV_MAX, "GRADCOMP");
		return;
	}
	if (!strncmp(name, "gradcomp.", 9))
		name += 9;
	snprintf(out, SETTINGS_ENV_MAX, "GRADCOMP_%s", name);
	for (char *p = out; *p; p++)
		*p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
}

/* What nobody has meant to write: characters that cannot be seen, and quotes, which would be part of the value. */
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
	gradcomp_status status = check_typed(s->row.name, text, err);
	gradcomp_error inner;

	if (!status)
		status = spec_value(&s->row, text, out, err);
	if (status || !s->check)
		return status;
	status = s->check(text, &inner);
	return status ? error_set(err, status, "%s: %s", s->row.name, inner.text) : GRADCOMP_OK;
}
