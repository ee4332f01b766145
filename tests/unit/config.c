/* Settings: where values come from, and every way a file can be wrong. */
#include "config/config.h"

#include "config/conffile.h"
#include "config/settings.h"

#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

#include <ctype.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char conf[128];
static gradcomp_error e;

static void write_conf(const char *text, size_t bytes)
{
	FILE *f = fopen(conf, "w");
	if (!f || fwrite(text, 1, bytes, f) != bytes || fclose(f))
		exit(2);
	chmod(conf, 0644);
}

/* The value of a setting after loading `text` as the file, or the error. */
static const char *loaded(const char *text, const char *name)
{
	static char out[600];
	config *c;
	write_conf(text, strlen(text));
	if (config_load(NULL, &c, &e))
		return e.text;
	setting_id id = settings_find(name);
	snprintf(out, sizeof out, "%s (%s)", config_str(c, id), config_origin(c, id));
	config_free(c);
	return out;
}

static void count_origin(void *ctx, const char *name, const char *value, const char *origin, const char *help)
{
	(void)name;
	(void)value;
	*(int *)ctx += strcmp(origin, "default") != 0 || !*help;
}

/* The number of a setting is that of its name. */
static void numbers(void)
{
	static const char *const ids[] = {
#define SETTING(id, ...) #id,
#include "config/settings.def"
	};
	for (setting_id i = 0; i < SET_COUNT; i++) {
		const char *name = settings_table[i].row.name;
		size_t n = 0;
		while (name[n] && ids[i][n] == (name[n] == '.' ? '_' : toupper((unsigned char)name[n])))
			n++;
		ok(!name[n] && !ids[i][n], "SET_%s is %s", ids[i], name);
		is_int(settings_find(name), i, "which stands in the table once");
	}
}

static void defaults(void)
{
	config *c;
	int other = 0;
	write_conf("", 0);
	is_int(config_load(NULL, &c, &e), 0, "an empty file");
	config_each(c, count_origin, &other);
	is_int(other, 0, "everything is default and has help");
	is_str(config_str(c, SET_GRADCOMP_COMPRESSOR), "none", "compressor");
	is_int(config_int(c, SET_REDUCER_BUCKET_BYTES), 25 << 20, "a size in bytes");
	is_int(config_int(c, SET_TRANSPORT_CMA), 0, "a bool");
	is_int(config_int(c, SET_GRADCOMP_LOG), GRADCOMP_LOG_INFO, "a log level is its number");
	ok(config_float(c, SET_TRANSPORT_TIMEOUT) == 30, "a float");
	ok(!config_find(c, "transport.nothing"), "no such setting");
	is_str(config_find(c, "transport.allow"), "shm,tcp,verbs", "a setting by name");
	config_free(c);
	config_free(NULL);
}

static void good_files(void)
{
	char at[256];
	snprintf(at, sizeof at, "45 (%s:3)", conf);
	is_str(loaded("# a comment\n[transport]\ntimeout = 45\n", "transport.timeout"), at, "file:line");
	is_str(loaded("\xef\xbb\xbf[transport]\r\n\r\ntimeout=45 ; why\r\n", "transport.timeout"), at,
	       "BOM, CRLF, a comment behind the value");
	snprintf(at, sizeof at, "powersgd:rank=4 (%s:2)", conf);
	is_str(loaded("[gradcomp]\ncompressor = powersgd:rank=4", "gradcomp.compressor"), at,
	       "a SPEC, no newline at the end");
	snprintf(at, sizeof at, "3 (%s:4)", conf);
	is_str(loaded("[transport]\ncma = yes\n[transport] ; again\nstreams=3\n  # indented comment\n  \n",
	              "transport.streams"),
	       at, "a section in two pieces");
	snprintf(at, sizeof at, " (%s:2)", conf);
	is_str(loaded("[gradcomp]\nreport =\n", "gradcomp.report"), at, "an empty text");
	is_str(loaded("[gradcomp]\nreport = # none\n", "gradcomp.report"), at, "a comment alone");
	snprintf(at, sizeof at, "/x#1;2 (%s:2)", conf);
	is_str(loaded("[gradcomp]\nreport = /x#1;2 # mine\n", "gradcomp.report"), at, "a comment behind a text");
}

/* Longer by far than what inih hands on whole: where it is parted, no blank is lost and no comment seen. */
static void long_lines(void)
{
	static char text[67000], want[67000];
	const size_t value = 65536 - strlen("report = "), head = strlen("[gradcomp]\nreport = ");
	config *c;
	for (size_t phase = 0; phase < 6; phase++) {
		strcpy(text, "[gradcomp]\nreport = ");
		for (size_t i = 0; i < value; i++)
			text[head + i] = i ? "|;#= x"[(i + phase) % 6] : '/';
		strcpy(text + head + value - 1, "z\r\n[transport]\nstreams = 3\n");
		snprintf(want, sizeof want, "%.*s", (int)value, text + head);
		write_conf(text, strlen(text));
		is_int(config_load(NULL, &c, &e), 0, "a line of 65536 characters: %s", e.text);
		ok(!strcmp(config_str(c, SET_GRADCOMP_REPORT), want), "is read whole");
		is_int(config_int(c, SET_TRANSPORT_STREAMS), 3, "and so is the next");
		config_free(c);
	}
	snprintf(text, sizeof text, "[gradcomp]\nreport = /%0*d\n", (int)value, 0);
	like(loaded(text, "gradcomp.report"), ":2: the line is too long; at most 65536", "one more is refused");
	snprintf(text, sizeof text, ";%065530d\n[gradcomp] ;%0500d\nreport = /x\n", 0, 0);
	like(loaded(text, "gradcomp.report"), "/x (", "long comments");
	snprintf(text, sizeof text, "[gradcomp]\n%0300d = 3\n", 0);
	like(loaded(text, "gradcomp.report"), ":2: a name has at most", "a long name");
}

/* Lists, which several lines may fill. */
static void lists(void)
{
	char want[500];
	snprintf(want, sizeof want, "/a:/b:/c (%s:2, %s:3, %s:5)", conf, conf, conf);
	is_str(loaded("[gradcomp]\nplugin_path = /a\nplugin_path = /b ; ours\nlog = info\nplugin_path = /c # theirs\n",
	              "gradcomp.plugin_path"),
	       want, "a list of three lines");
	like(loaded("[auto]\ncandidates = none\ncandidates = topk:density=0.1,values=bf16\n", "auto.candidates"),
	     "none,topk:density=0.1,values=bf16 (", "SPECs");
	like(loaded("[stage]\nshared = /a\nshared = b\n", "stage.shared"), ":3: stage.shared: 'b' is neither",
	     "the line that is wrong");
	like(loaded("[gradcomp]\nlock = stage.source_timeout\nlock = stage.max_bytes\nlock =\n", "gradcomp.lock"),
	     "stage.source_timeout,stage.max_bytes (", "locks, and a line that names none");
	like(loaded("[stage]\nshared =\nshared = /a\n", "stage.shared"), "/a (", "the first line names none");
}

static void bad_files(void)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"[transport]\ntimeuot = 3\n", ":2: unknown key 'timeuot' in section [transport] (did you mean "
	                                       "'transport.timeout'?)"},
		{"[gradcomp]\ntimeout = 3\n", ":2: unknown key 'timeout' in section [gradcomp]"},
		{"\n[transprot]\n",
	         ":2: unknown section [transprot]; there are [gradcomp], [transport], [security], [reducer], [report], [trace], [auto], [schedule], [operators], [stage], [dataset]"},
		{"[trans]\n", ":1: unknown section [trans]"},
		{"[]\n", ":1: unknown section []"},
		{"[transport\ntimeout=3\n", ":1: '[transport' is not a section"},
		{"[transport] timeout=3\n", ":1: '[transport] timeout=3' is not a section"},
		{"timeout = 3\n", ":1: 'timeout' stands before the first [section]"},
		{"[transport]\ntimeout\n", ":2: this is no comment, no [section] and no key = value"},
		{"[transport]\ntimeout = 3\nstreams = 2\ntimeout = 3\n",
	         ":4: transport.timeout was given in line 2 already"},
		{"[transport]\n= 3\n", ":2: this is no comment, no [section] and no key = value"},
		{"[transport]\n=3=\n", ":2: this is no comment, no [section] and no key = value"},
		{"[transport]\nstreams = 2\n =3=\n", ":3: the line is indented"},
		{"\xef\xbb\xbf\xef\xbb\xbf=3=\n", ":1: "},
		{"[transport]\nstreams = 2\ntimeout ;= 3\n", ":3: this is no comment, no [section] and no key = value"},
		{"[transport]\ntimeout = 3\n  4\n", ":3: the line is indented"},
		{"[transport]\n\ttimeout = 3\n", ":2: the line is indented"},
		{"[transport]\ntimeout = soon\n", ":2: transport.timeout: 'soon' is not a number; "
	                                          "transport.timeout=FLOAT (0.1..86400, default 30)"},
		{"[transport]\ntimeout =\n", ":2: transport.timeout: '' is not a number"},
		{"[transport]\nstreams = 99\n", ":2: transport.streams: '99' is too large"},
		{"[transport]\ncma = perhaps\n", ":2: transport.cma: 'perhaps' is not yes or no"},
		{"[transport]\nallow = shm,ib\n", ":2: transport.allow: 'shm,ib': 'ib' is not a transport"},
		{"[transport]\nallow =\n", ":2: transport.allow: '': '' is not a transport"},
		{"[transport]\nallow = tcp,verb\n", ":2: transport.allow: 'tcp,verb': 'verb' is not a transport"},
		{"[transport]\nverbs_device = :1\n",
	         ":2: transport.verbs_device: ':1' is neither auto nor an RDMA device"},
		{"[transport]\nverbs_device = mlx5_0:0\n",
	         ":2: transport.verbs_device: 'mlx5_0:0' is neither auto nor an RDMA device"},
		{"[transport]\nverbs_device = mlx5_0:1:-1\n",
	         ":2: transport.verbs_device: 'mlx5_0:1:-1' is neither auto nor an RDMA device"},
		{"[transport]\nverbs_device = mlx5_0:1:256\n",
	         ":2: transport.verbs_device: 'mlx5_0:1:256' is neither auto nor an RDMA device"},
		{"[transport]\nverbs_memory = 1K\n", ":2: transport.verbs_memory: "},
		{"[gradcomp]\nlog = loud\n",
	         ":2: gradcomp.log: 'loud' is not a choice; gradcomp.log=error|warn|info|debug"},
		{"[gradcomp]\ncompressor = ../evil\n", ":2: gradcomp.compressor: '../evil' cannot be a name"},
		{"[gradcomp]\nplugin_path = /a:b\n", ":2: gradcomp.plugin_path: '/a:b': 'b' is not an absolute path"},
		{"[gradcomp]\nplugin_path = /a:\n", ": '' is not an absolute path"},
		{"[gradcomp]\nreport = a%q\n", ":2: gradcomp.report: report 'a%q': after '%' may come"},
		{"[stage]\ncache_dir = tmp\n", ":2: stage.cache_dir: 'tmp' is not an absolute path"},
		{"[stage]\nmax_bytes = -1\n", ":2: stage.max_bytes: '-1' is not a size"},
		{"[stage]\nevict = 50,60\n", ":2: stage.evict: '50,60' is not two percentages such as 95,80"},
		{"[stage]\nevict = 95\n", ":2: stage.evict: '95' is not two"},
		{"[stage]\nevict = 101,80\n", ":2: stage.evict: '101,80' is not two"},
		{"[stage]\nevict = 80,0\n", ":2: stage.evict: '80,0' is not two"},
		{"[stage]\nhigh_mark = 50\n", ":2: unknown key 'high_mark' in section [stage]"},
		{"[transport]\ninterface = 10.0.0.0/99\n",
	         ":2: transport.interface: '10.0.0.0/99' is neither an address block"},
		{"[transport]\ninterface = 10.0.0/8\n", ":2: transport.interface: '10.0.0/8' is neither"},
		{"[transport]\ninterface = eth0123456789012\n",
	         ":2: transport.interface: 'eth0123456789012' is neither"},
		{"[transport]\ntimeout = 3\001\n", ":2: there is a control character (0x01)"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char name[64];
		snprintf(name, sizeof name, "refused: case %zu, %.40s", i, cases[i].says);
		like(loaded(cases[i].text, "gradcomp.log"), cases[i].says, name);
	}

	long_lines();
	write_conf("[transport]\ntime\0out = 3\n", 25);
	config *c;
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INVALID, "a zero byte");
	like(e.text, ":2: there is a control character (0x00)", "is named");

	/* NOTFOUND would stand for no file, and the site's be passed over. */
	char says[200];
	const char wrong[] = "[gradcomp]\nschedule = mgwfpb\n[security]\nframes = mac\n";
	write_conf(wrong, sizeof wrong - 1);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INVALID, "a schedule that there is not");
	snprintf(says, sizeof says, "%s:2: gradcomp.schedule: no schedule 'mgwfpb' (did you mean 'mgwfbp'?)", conf);
	is_int(strncmp(e.text, says, strlen(says)), 0, "is a mistake in the file: %s", e.text);
}

static void insecure(void)
{
	char other[256];
	write_conf("[transport]\nstreams = 3\n", 24);
	chmod(conf, 0646);
	config *c;
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INSECURE, "a file everybody can write");
	like(e.text, "it can be written by everybody (mode 0646); mend it with: chmod go-w", "says so");
	chmod(conf, 0664);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INSECURE, "a file its group can write");
	chmod(conf, 0600);
	chmod(tmpdir, 0777);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INSECURE, "a directory everybody can write");
	like(e.text, tmpdir, "names the directory");
	chmod(tmpdir, 01777);
	is_int(config_load(NULL, &c, &e), 0, "unless it is sticky");
	config_free(c);
	chmod(tmpdir, 0700);
	if (geteuid() == 0) {
		if (chown(conf, 12345, 12345))
			exit(2);
		is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INSECURE, "a file of somebody else");
		like(e.text, "belongs to user 12345", "says whose");
		if (chown(conf, 0, 0))
			exit(2);
	} else {
		skip("needs root", "a file of somebody else");
	}

	snprintf(other, sizeof other, "%s/link", tmpdir);
	if (symlink(conf, other))
		exit(2);
	setenv("GRADCOMP_CONF", other, 1);
	is_int(config_load(NULL, &c, &e), 0, "a link to a good file");
	config_free(c);
	unlink(other);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_NOTFOUND, "a named file that is missing");
	like(e.text, "GRADCOMP_CONF: ", "says who named it");
	if (mkfifo(other, 0600))
		exit(2);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INVALID, "a FIFO");
	like(e.text, "is a FIFO, not a regular file", "is not opened");
	unlink(other);
	setenv("GRADCOMP_CONF", tmpdir, 1);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INVALID, "a directory");
	setenv("GRADCOMP_CONF", "/dev/null", 1);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INVALID, "a device");
	setenv("GRADCOMP_CONF", conf, 1);
}

static void environment(void)
{
	static const char file[] = "[gradcomp]\ncompressor = topk\ncollective = hier\n[transport]\ntimeout = 5\n";
	static const char *const set[] = {"transport.timeout=7", "gradcomp.collective=ring:x=1", NULL};
	static const char *const unknown[] = {"transport.tiemout=7", NULL};
	static const char *const wrong[] = {"transport.timeout=x", NULL};
	static const char *const shapeless[] = {"transport.timeout", NULL};
	config *c;
	setenv("GRADCOMP", "powersgd:rank=2", 1);
	is_str(loaded(file, "gradcomp.compressor"), "powersgd:rank=2 (environment GRADCOMP)", "over the file");
	setenv("GRADCOMP_OPTIONS", "compressor collective", 1);
	is_str(loaded(file, "gradcomp.compressor"), "powersgd:rank=2 (option --gradcomp)", "an option");
	setenv("GRADCOMP_COLLECTIVE", "tree", 1);
	is_str(loaded(file, "gradcomp.collective"), "tree (option --gradcomp-collective)", "another option");
	setenv("GRADCOMP_REPORT", "/r.json", 1);
	is_str(loaded(file, "gradcomp.report"), "/r.json (environment GRADCOMP_REPORT)", "not named as an option");
	unsetenv("GRADCOMP_OPTIONS");
	setenv("GRADCOMP", "off", 1);
	like(loaded(file, "gradcomp.compressor"), "topk (", "GRADCOMP=off sets nothing");
	setenv("GRADCOMP", "", 1);
	like(loaded(file, "gradcomp.compressor"), "topk (", "nor does an empty one");
	setenv("GRADCOMP_TRANSPORT_TIMEOUT", "6", 1);
	is_str(loaded(file, "transport.timeout"), "6 (environment GRADCOMP_TRANSPORT_TIMEOUT)", "section and key");

	is_int(config_load(set, &c, &e), 0, "overrides");
	is_str(config_str(c, SET_TRANSPORT_TIMEOUT), "7", "win over everything");
	is_str(config_origin(c, SET_TRANSPORT_TIMEOUT), "application", "and say so");
	is_str(config_str(c, SET_GRADCOMP_COLLECTIVE), "ring:x=1", "a value may have '='");
	config_free(c);
	is_int(config_load(unknown, &c, &e), GRADCOMP_ERR_NOTFOUND, "an unknown override");
	is_int(config_load(wrong, &c, &e), GRADCOMP_ERR_INVALID, "a wrong override");
	like(e.text, "application: transport.timeout: 'x' is not a number", "says who");
	is_int(config_load(shapeless, &c, &e), GRADCOMP_ERR_INVALID, "an override without '='");

	setenv("GRADCOMP_TRANSPORT_TIMEOUT", "never", 1);
	like(loaded(file, "transport.timeout"), "environment GRADCOMP_TRANSPORT_TIMEOUT: transport.timeout: 'never'",
	     "a wrong variable is named");
	unsetenv("GRADCOMP_TRANSPORT_TIMEOUT");
	setenv("GRADCOMP_COMPRESSOR", "topk", 1);
	like(loaded(file, "transport.timeout"), "the variable for the compressor is GRADCOMP", "GRADCOMP_COMPRESSOR");
	unsetenv("GRADCOMP_COMPRESSOR");
	unsetenv("GRADCOMP");
	unsetenv("GRADCOMP_REPORT");
	unsetenv("GRADCOMP_COLLECTIVE");
}

/* Gives options as gradcomp check does: they stand in the environment's place, which stays as it is. */
static void options_of_srun(void)
{
	static const config_option given[] = {{SET_GRADCOMP_COMPRESSOR, "topk"},
	                                      {SET_GRADCOMP_REPORT, NULL},
	                                      {SET_GRADCOMP_COLLECTIVE, "tree"},
	                                      {SET_COUNT, NULL}};
	config *c;
	setenv("GRADCOMP", "../no:SPEC", 1);
	setenv("GRADCOMP_REPORT", "/r.json", 1);
	setenv("GRADCOMP_OPTIONS", "report", 1);
	is_int(config_load_options(given, &c, &e), 0, "what an option replaces is not looked at");
	is_str(config_str(c, SET_GRADCOMP_COMPRESSOR), "topk", "an option's value");
	is_str(config_origin(c, SET_GRADCOMP_COMPRESSOR), "option --gradcomp", "is said to be one");
	is_str(config_origin(c, SET_GRADCOMP_COLLECTIVE), "option --gradcomp-collective", "so is another");
	is_str(config_str(c, SET_GRADCOMP_REPORT), "/r.json", "one that is not given is left to the environment");
	is_str(config_origin(c, SET_GRADCOMP_REPORT), "environment GRADCOMP_REPORT",
	       "whatever options there once were");
	config_free(c);
	is_str(getenv("GRADCOMP"), "../no:SPEC", "the environment is as it was");
	unsetenv("GRADCOMP");
	unsetenv("GRADCOMP_REPORT");
	unsetenv("GRADCOMP_OPTIONS");
}

/* The site's file, which a user's GRADCOMP_CONF does not replace altogether. */
static char site[300] = "/nowhere/gradcomp.conf";

const char *conffile_site(void)
{
	return site;
}

static void write_site(const char *text)
{
	FILE *f = fopen(site, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		exit(2);
	chmod(site, 0644);
}

static void locks(void)
{
	static const char *const more[] = {"stage.user_bytes=9T", NULL};
	static const char *const same[] = {"stage.user_bytes=700K", NULL};
	char says[700];
	config *c;
	like(loaded("[gradcomp]\nlock = stage.user_bites\n", "gradcomp.lock"),
	     ":2: gradcomp.lock: no setting 'stage.user_bites' (did you mean 'stage.user_bytes'?); write SECTION.KEY or SECTION.*",
	     "a lock of what there is not");
	like(loaded("[gradcomp]\nlock = stages.*\n", "gradcomp.lock"), "no setting 'stages.*'",
	     "a section that there is not");
	setenv("GRADCOMP_LOCK", "stage.source_timeout", 1);
	like(loaded("", "gradcomp.lock"), "environment GRADCOMP_LOCK: gradcomp.lock can be set in gradcomp.conf only",
	     "a lock is of a file");
	unsetenv("GRADCOMP_LOCK");

	/* In the only file. */
	setenv("GRADCOMP_STAGE_USER_BYTES", "9T", 1);
	snprintf(says, sizeof says,
	         "environment GRADCOMP_STAGE_USER_BYTES: stage.user_bytes is locked by %s:2, where it is '700K'", conf);
	is_str(loaded("[stage]\nuser_bytes = 700K\n", "stage.user_bytes"), says, "a quota that a file sets holds");
	is_str(loaded("[stage]\nsource_timeout = 3\n", "stage.user_bytes"),
	       "9T (environment GRADCOMP_STAGE_USER_BYTES)", "one that no file sets does not");
	snprintf(says, sizeof says, "is locked by %s:2, where it is '0'", conf);
	like(loaded("[gradcomp]\nlock = transport.timeout, stage.user_bytes\n", "stage.user_bytes"), says,
	     "unless it is locked as it is by default");
	unsetenv("GRADCOMP_STAGE_USER_BYTES");
	setenv("GRADCOMP_STAGE_CACHE_BYTES", "50%", 1);
	like(loaded("[stage]\ncache_bytes = 60%\n", "stage.cache_bytes"), "stage.cache_bytes is locked by",
	     "cache_bytes");
	unsetenv("GRADCOMP_STAGE_CACHE_BYTES");
	setenv("GRADCOMP_STAGE_MAX_BYTES", "0", 1);
	like(loaded("[stage]\nmax_bytes = 1T\n", "stage.max_bytes"), "stage.max_bytes is locked by", "max_bytes");
	unsetenv("GRADCOMP_STAGE_MAX_BYTES");
	setenv("GRADCOMP_SECURITY_FRAMES", "none", 1);
	like(loaded("[security]\nframes = mac\n", "security.frames"), "security.frames is locked by", "frames");
	is_str(loaded("[security]\nframes = none\n", "security.secret"), "auto (default)",
	       "what is the same is no change");
	unsetenv("GRADCOMP_SECURITY_FRAMES");
	setenv("GRADCOMP_SECURITY_SECRET", "pmix", 1);
	like(loaded("[security]\nsecret = munge\n", "security.secret"), "security.secret is locked by", "secret");
	like(loaded("[gradcomp]\nlock = security.*\n", "security.secret"), "security.secret is locked by",
	     "a whole section");
	unsetenv("GRADCOMP_SECURITY_SECRET");
	setenv("GRADCOMP_PLUGIN_PATH", "/tmp", 1);
	like(loaded("[gradcomp]\nplugin_path = /opt\n", "gradcomp.plugin_path"), "/tmp (environment",
	     "plugins are not locked");
	like(loaded("[gradcomp]\nlock = gradcomp.plugin_path\n", "gradcomp.plugin_path"),
	     "gradcomp.plugin_path is locked by", "unless the file says so");
	unsetenv("GRADCOMP_PLUGIN_PATH");
	write_conf("[stage]\nuser_bytes = 700K\n", 27 - 1);
	is_int(config_load(more, &c, &e), GRADCOMP_ERR_INVALID, "nor can the application change it");
	like(e.text, "application: stage.user_bytes is locked by", "by name");
	is_int(config_load(same, &c, &e), 0, "but say the same");
	like(config_lock_of(c, SET_STAGE_USER_BYTES), ":2", "who has locked it");
	ok(!config_lock_of(c, SET_STAGE_MAX_BYTES), "and what nobody has");
	config_free(c);

	/* In the site's, beside a user's. */
	snprintf(site, sizeof site, "%s/site.conf", tmpdir);
	write_site("[gradcomp]\nlock = stage.source_timeout\n[stage]\nuser_bytes = 700K\nevict = 90,80\n");
	snprintf(says, sizeof says, "700K (%s:4)", site);
	is_str(loaded("[transport]\nstreams = 3\n", "stage.user_bytes"), says,
	       "the site's quota holds under another file");
	is_str(loaded("[transport]\nstreams = 3\n", "stage.evict"), "95,80 (default)",
	       "what is not locked is the other file's");
	snprintf(says, sizeof says, "%s:2: stage.user_bytes is locked by %s:4, where it is '700K'", conf, site);
	is_str(loaded("[stage]\nuser_bytes = 9T\n", "stage.user_bytes"), says, "the other file cannot change it");
	snprintf(says, sizeof says, "%s:2: stage.source_timeout is locked by %s:2, where it is '60'", conf, site);
	is_str(loaded("[stage]\nsource_timeout = 9\n", "stage.source_timeout"), says, "nor what is locked");
	like(loaded("[gradcomp]\nlock =\n", "gradcomp.lock"), "gradcomp.lock is locked by", "nor the lock");
	write_site("[stage]\nuser_bites = 1\n");
	like(loaded("", "stage.user_bytes"), "site.conf:2: unknown key",
	     "a site's file that cannot be read locks out all");
	setenv("GRADCOMP_CONF", site, 1);
	write_site("[stage]\nuser_bytes = 1M\n");
	is_int(config_load(NULL, &c, &e), 0, "the site's file by its name");
	like(config_lock_of(c, SET_STAGE_USER_BYTES), "site.conf:2", "is read once");
	config_free(c);
	unlink(site);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_NOTFOUND, "and must be there then");
	setenv("GRADCOMP_CONF", conf, 1);
}

/* Files beside the site's. */
static void drop_ins(void)
{
	char folder[200], says[700], saved[sizeof site];
	const char *const files[] = {"20-ours.conf", "10-theirs.conf", ".hidden.conf", "notes.txt", "30-more.conf"};
	const char *const texts[] = {"[transport]\nstreams = 4\n[gradcomp]\nplugin_path = /ours\n",
	                             "[transport]\nstreams = 3\ntimeout = 7\n[gradcomp]\nplugin_path = /theirs\n",
	                             "nonsense", "nonsense", "[gradcomp]\nlock = transport.streams\n"};
	config *c;
	snprintf(folder, sizeof folder, "%s/conf.d", tmpdir);
	mkdir(folder, 0755);
	unsetenv("GRADCOMP_CONF");
	memcpy(saved, site, sizeof site);
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		snprintf(site, sizeof site, "%s/%s", folder, files[i]);
		write_site(texts[i]);
	}
	memcpy(site, saved, sizeof site);
	is_int(config_load(NULL, &c, &e), 0, "conf.d without a file beside it: %s", e.text);
	is_str(config_str(c, SET_TRANSPORT_STREAMS), "4", "the last file wins");
	is_str(config_str(c, SET_TRANSPORT_TIMEOUT), "7", "what only one says");
	is_str(config_str(c, SET_GRADCOMP_PLUGIN_PATH), "/theirs:/ours", "lists grow, in the order of the names");
	snprintf(says, sizeof says, "%s/10-theirs.conf:5, %s/20-ours.conf:4", folder, folder);
	is_str(config_origin(c, SET_GRADCOMP_PLUGIN_PATH), says, "by whom");
	like(config_lock_of(c, SET_TRANSPORT_STREAMS), "30-more.conf:2", "a lock");
	config_free(c);
	write_site("[gradcomp]\nplugin_path = /first\n");
	is_int(config_load(NULL, &c, &e), 0, "the site's file comes first");
	is_str(config_str(c, SET_GRADCOMP_PLUGIN_PATH), "/first:/theirs:/ours", "in lists, too");
	config_free(c);
	setenv("GRADCOMP_CONF", conf, 1);
	snprintf(says, sizeof says, "%s:2: transport.streams is locked by %s/30-more.conf:2, where it is '4'", conf,
	         folder);
	is_str(loaded("[transport]\nstreams = 3\n", "transport.streams"), says, "a lock holds for another file");
	like(loaded("", "transport.timeout"), "30 (default)", "which replaces the rest");
	snprintf(says, sizeof says, "%s/20-ours.conf", folder);
	chmod(says, 0666);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INSECURE, "one that everybody can write");
	unlink(says);
	if (symlink("/nonexistent", says))
		exit(2);
	is_int(config_load(NULL, &c, &e), GRADCOMP_ERR_INVALID, "a link that leads nowhere");
	like(e.text, "20-ours.conf", "is named");
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		snprintf(says, sizeof says, "%s/%s", folder, files[i]);
		unlink(says);
	}
	rmdir(folder);
	unlink(site);
}

static void note(void *ctx, const char *text)
{
	char *all = ctx;
	size_t n = strlen(all);
	snprintf(all + n, 1000 - n, "%s\n", text);
}

static void variables(void)
{
	char all[1000] = "";
	setenv("GRADCOMP_DATA_1_SHARD", "0/2", 1);
	setenv("GRADCOMP_TRANSPORT_STREAMS", "2", 1);
	setenv("GRADCOMP_TRANSPORT_STRAEMS", "2", 1);
	setenv("GRADCOMP_FOO", "2", 1);
	config_unknown(note, all);
	like(all, "environment GRADCOMP_FOO: gradcomp knows no such variable\n", "a variable that means nothing");
	like(all,
	     "GRADCOMP_TRANSPORT_STRAEMS: gradcomp knows no such variable (did you mean 'GRADCOMP_TRANSPORT_STREAMS'?)\n",
	     "one with a slip of the pen");
	ok(!strstr(all, "environment GRADCOMP_TRANSPORT_STREAMS") && !strstr(all, "DATA") && !strstr(all, "CONF"),
	   "and no others: %s", all);
	unsetenv("GRADCOMP_DATA_1_SHARD");
	unsetenv("GRADCOMP_TRANSPORT_STREAMS");
	unsetenv("GRADCOMP_TRANSPORT_STRAEMS");
	unsetenv("GRADCOMP_FOO");
}

int main(void)
{
	umask(022);
	tmpdir_make("config");
	snprintf(conf, sizeof conf, "%s/gradcomp.conf", tmpdir);
	for (size_t i = 0; i < SET_COUNT; i++) {
		char env[SETTINGS_ENV_MAX];
		settings_env(&settings_table[i], env);
		unsetenv(env);
	}
	unsetenv("GRADCOMP_OPTIONS");
	setenv("GRADCOMP_CONF", conf, 1);
	numbers();
	defaults();
	good_files();
	lists();
	bad_files();
	insecure();
	environment();
	options_of_srun();
	locks();
	drop_ins();
	variables();
	return done_testing();
}
