/* gradcomp doctor: a step on every node of an allocation says what it finds there, and what differs is told. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/install.h"
#include "base/number.h"
#include "base/sha256.h"
#include "base/strset.h"
#include "config/config.h"
#include "job/job.h"
#include "tools/commands.h"
#include "transport/wire/address.h"

static const char usage[] =
	"usage: gradcomp doctor [--nodes N] [--records DIR]\n"
	"       gradcomp doctor --facts | --join | --pairs [--records DIR]\n"
	"\n"
	"Compares the nodes of an allocation: command, library, plugins, settings, MTU, clocks, caches,\n"
	"epilogs. Then a job joins over all of them, and over all but the first, and packets of full size\n"
	"are sent between all pairs. Says what is wrong and what to do; 1 when something is.\n"
	"\n"
	"  --nodes N      on N nodes; outside of an allocation on N that Slurm chooses\n"
	"  --records DIR  where the SPANK plugin keeps its records, if plugstack.conf says records=\n"
	"  --facts        print what this node has, as doctor reads it\n"
	"  --join         join a job with the other tasks of this step\n"
	"  --pairs        the same, and print how fast each of them is reached from here\n";

#define FACT_FIELDS 5 /* node, kind, name, value, detail: separated by tabs, a fact a line */
#define LINE_BYTES 70000
#define PAIR_SECONDS 0.1
#define PAIR_AGAIN_SECONDS 1
#define PAIR_SLOWER 4 /* times than the others, to be worth a line */
#define SPANK_VARIABLE "SLURM_GRADCOMP_PLUGIN"

static double wall_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fact(const char *kind, const char *name, const char *value, const char *detail)
{
	char host[HOST_NAME_MAX + 1] = "?";
	gethostname(host, sizeof host - 1);
	printf("%s\t%s\t%s\t%s\t%s\n", host, kind, name, value, detail);
}

static void setting_fact(void *ctx, const char *name, const char *value, const char *origin, const char *help)
{
	(void)ctx, (void)help;
	fact("setting", name, value, origin);
}

static void file_fact(const char *kind, const char *name, const char *path)
{
	unsigned char digest[SHA256_BYTES];
	char hex[2 * SHA256_BYTES + 1];
	if (sha256_file(path, digest) < 0) {
		fact(kind, name, errno == ENOENT ? "not there" : strerror(errno), path);
		return;
	}
	sha256_hex(digest, hex);
	hex[12] = '\0';
	fact(kind, name, hex, path);
}

static int plugin_fact(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                       const char *reason)
{
	(void)info, (void)reason;
	file_fact(ctx, name, path);
	return 0;
}

/* The smallest MTU of the interfaces that ranks use. */
static void mtu_fact(const char *filter)
{
	address own[ADDRESS_MAX];
	struct ifreq least = {.ifr_mtu = 0};
	struct ifaddrs *list = NULL;
	char value[16];
	gradcomp_error err;
	int n, fd;
	if (address_own(filter, own, &n, &err)) {
		fact("wrong", "network", err.text, "set transport.interface to a network that this node has");
		return;
	}
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || getifaddrs(&list)) {
		fact("wrong", "network", strerror(errno), "look at the limits of this node");
		list = NULL;
	}
	for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
		bool used = false;
		struct ifreq r = {.ifr_mtu = 0};

		for (int k = 0; i->ifa_addr && k < n; k++)
			used |= i->ifa_addr->sa_family == AF_INET && own[k].bytes == 4 &&
			        !memcmp(&((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, own[k].ip,
			                4);
		snprintf(r.ifr_name, sizeof r.ifr_name, "%s", i->ifa_name);
		if (used && ioctl(fd, SIOCGIFMTU, &r) == 0 && (!least.ifr_mtu || r.ifr_mtu < least.ifr_mtu))
			least = r;
	}
	snprintf(value, sizeof value, "%d", least.ifr_mtu);
	if (least.ifr_mtu)
		fact("mtu", "", value, least.ifr_name);
	freeifaddrs(list);
	if (fd >= 0)
		close(fd);
}

static void cache_fact(const char *dir)
{
	char value[80];
	struct stat st;
	if (stat(dir, &st))
		snprintf(value, sizeof value, "%s", errno == ENOENT ? "not there" : strerror(errno));
	else
		snprintf(value, sizeof value, "of uid %u with mode %04o", (unsigned)st.st_uid,
		         (unsigned)(st.st_mode & 07777));
	fact("cache", "", value, dir);
}

/* The step was given this plugin's version to take away (spank/options.h). */
static void spank_fact(void)
{
	const char *left = getenv(SPANK_VARIABLE), *other = left ? strchr(left, ' ') : NULL;
	fact("plugin of", "slurmd", !left ? gradcomp_version() : other ? other + 1 : "not there", "");
}

static int facts(const char *records)
{
	char *own = install_own_file(&(unsigned long long){0}),
	     *library = install_path(GRADCOMP_LIBDIR "/libgradcomp.so"), clock[40];
	gradcomp_error err;
	config *c = NULL;
	snprintf(clock, sizeof clock, "%.3f", wall_clock());
	fact("clock", "", clock, "");
	fact("version", "", gradcomp_version(), "");
	spank_fact();
	if (own)
		file_fact("file", "gradcomp", own);
	if (library)
		file_fact("file", "libgradcomp.so", library);
	if (config_load(NULL, &c, &err)) {
		fact("wrong", "settings", err.text, "gradcomp config --check says more there");
	} else {
		config_each(c, setting_fact, NULL);
		gradcomp_plugin_each(GRADCOMP_KIND_COMPRESSOR, plugin_fact, (void *)(uintptr_t) "compressor", &err);
		gradcomp_plugin_each(GRADCOMP_KIND_COLLECTIVE, plugin_fact, (void *)(uintptr_t) "collective", &err);
		mtu_fact(config_str(c, SET_TRANSPORT_INTERFACE));
		cache_fact(config_str(c, SET_STAGE_CACHE_DIR));
	}
	if (prolog_seen(records) == PROLOG_UNSEEN)
		fact("wrong", "epilogs",
		     "slurmd runs no epilogs of gradcomp, it was started before plugstack.conf named the plugin",
		     "restart slurmd");
	config_free(c);
	free(own);
	free(library);
	return 0;
}

/* Which network the job takes, from rank 0. */
static void network_facts(const gradcomp_job *job)
{
	network_row rows[NETWORKS_MAX];
	int n = job->rank ? 0 : transport_networks(job->transport, rows);
	for (int i = 0; i < n; i++) {
		uint32_t rate = rows[i].measured ? rows[i].rate : rows[i].claimed;
		char value[60] = "", name[80];

		if (rate)
			snprintf(value, sizeof value, "%u Mbit/s%s", rate, rows[i].measured ? "" : " by its driver");
		else if (rows[i].measured)
			snprintf(value, sizeof value, "carries nothing");
		snprintf(name, sizeof name, "%s%s%s", rows[i].name, *rows[i].interface ? " on " : "",
		         rows[i].interface);
		fact(rows[i].chosen ? "network" : "other", name, value, "");
	}
}

/* Mbit/s to a rank as a fact; 0 when it cannot be reached. */
static double pair_fact(gradcomp_job *job, int rank, double seconds)
{
	double mbit = 0;
	char value[40];
	gradcomp_error err = {0};
	(void)transport_rate(job->transport, rank, seconds, &mbit, &err);
	snprintf(value, sizeof value, "%.3f", mbit);
	fact("pair", transport_host(job->transport, rank), value, err.text);
	return mbit;
}

/* Each rank sends to each other one, and in a round no two to the same. A rate that is much lower than any
 * rank's best is taken again: the machine may have been busy. */
static gradcomp_status send_between_pairs(gradcomp_job *job, gradcomp_error *err)
{
	double *mbit = calloc((size_t)job->nranks, sizeof *mbit), best = 0;
	gradcomp_status st =
		mbit ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d rates", job->nranks);
	network_facts(job);
	for (int k = 1; !st && k < job->nranks; k++) {
		int to = (job->rank + k) % job->nranks;

		mbit[to] = pair_fact(job, to, PAIR_SECONDS);
		best = mbit[to] > best ? mbit[to] : best;
		st = gradcomp_barrier(gradcomp_job_world(job), err);
	}
	if (!st)
		st = gradcomp_allreduce(gradcomp_job_world(job), &best, 1, GRADCOMP_F64, GRADCOMP_MAX, err);
	for (int r = 0; !st && r < job->nranks; r++)
		if (r != job->rank && mbit[r] < best / PAIR_SLOWER)
			pair_fact(job, r, PAIR_AGAIN_SECONDS);
	if (!st)
		st = gradcomp_barrier(gradcomp_job_world(job), err);
	free(mbit);
	return st;
}

static int join(bool pairs)
{
	gradcomp_job *job = NULL;
	gradcomp_error err = {0};
	gradcomp_status st = gradcomp_job_create(NULL, &job, &err);
	if (!st)
		st = gradcomp_barrier(gradcomp_job_world(job), &err);
	if (!st && pairs)
		st = send_between_pairs(job, &err);
	if (job && st)
		gradcomp_job_free(job, NULL);
	else if (job)
		st = gradcomp_job_free(job, &err);
	return st ? command_failed(&err) : 0;
}

/* The functions below ask all nodes. */

typedef struct told {
	char *line;
	const char *field[FACT_FIELDS];
} told;
enum { HOST, KIND, NAME, VALUE, DETAIL };

typedef struct doctor {
	told *facts;
	size_t n, capacity;
	strset hosts;
	int wrong;
	double began;   /* when the step began */
	char last[400]; /* the last thing said that is no fact */
} doctor;

static void take_line(doctor *d, char *line)
{
	told t = {.line = strdup(line)};
	char *rest = t.line;
	for (int i = 0; i < FACT_FIELDS && rest; i++)
		t.field[i] = strsep(&rest, "\t\n");
	if (!t.line || !t.field[DETAIL]) {
		if (!strncmp(line, "gradcomp: ", 10) || !d->last[0])
			snprintf(d->last, sizeof d->last, "%.*s", (int)strcspn(line, "\n"), line);
		free(t.line);
		return;
	}
	if (d->n == d->capacity) {
		size_t capacity = d->capacity ? 2 * d->capacity : 256;
		told *more = realloc(d->facts, capacity * sizeof *more);

		if (!more) {
			free(t.line);
			return;
		}
		d->facts = more;
		d->capacity = capacity;
	}
	if (!strcmp(t.field[KIND], "clock")) {
		double there = strtod(t.field[VALUE], NULL), now = wall_clock();

		if (there < d->began - 1 || there > now + 1) {
			printf("%s: the clock is %.0f s %s: set it, as with chronyc makestep\n", t.field[HOST],
			       there < d->began ? d->began - there : there - now, there < d->began ? "slow" : "fast");
			d->wrong++;
		}
	}
	d->facts[d->n++] = t;
}

/* A step of srun over `nodes` nodes; its exit status, or -1. */
static int step(doctor *d, const char *what, int nodes, bool relative, const char *records)
{
	char *own = install_own_file(&(unsigned long long){0}), count[16], *line = malloc(LINE_BYTES);
	const char *argv[] = {"srun", "-N", count, "-n", count, "--ntasks-per-node=1", "--overlap", NULL, NULL, NULL,
	                      NULL,   NULL, NULL,  NULL, NULL};
	int ends[2] = {-1, -1}, n = 7, status = -1;
	pid_t pid = -1;
	FILE *out;
	snprintf(count, sizeof count, "%d", nodes);
	if (relative)
		argv[n++] = "--relative=1";
	argv[n++] = strcmp(what, "--facts") ? "--mpi=pmix" : "--mpi=none";
	argv[n++] = own;
	argv[n++] = "doctor";
	argv[n++] = what;
	argv[n++] = "--records";
	argv[n] = records;
	d->began = wall_clock();
	d->last[0] = '\0';
	if (own && line && pipe(ends) == 0)
		pid = fork();
	if (pid == 0) {
		setenv("GRADCOMP", "none", 1); /* a job that asks for it does so */
		if (!strcmp(what, "--facts"))
			setenv(SPANK_VARIABLE, gradcomp_version(), 1);
		if (dup2(ends[1], 1) == 1 && dup2(ends[1], 2) == 2) {
			close(ends[0]);
			close(ends[1]);
			execvp(argv[0], (char *const *)(uintptr_t)argv);
		}
		perror("gradcomp: srun");
		_exit(127);
	}
	if (ends[1] >= 0)
		close(ends[1]);
	out = pid > 0 ? fdopen(ends[0], "r") : NULL;
	while (out && fgets(line, LINE_BYTES, out))
		take_line(d, line);
	if (out)
		fclose(out);
	if (pid > 0 && waitpid(pid, &status, 0) == pid)
		status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	free(own);
	free(line);
	return status;
}

static int by_name(const void *a, const void *b)
{
	const told *x = a, *y = b;
	int order = strcmp(x->field[KIND], y->field[KIND]);
	order = order ? order : strcmp(x->field[NAME], y->field[NAME]);
	return order ? order : strcmp(x->field[HOST], y->field[HOST]);
}

static bool same_thing(const told *a, const told *b)
{
	return !strcmp(a->field[KIND], b->field[KIND]) && !strcmp(a->field[NAME], b->field[NAME]);
}

/* Says what to do on `host` about a fact that differs there; `model` has the right one. */
static void remedy(const told *model, const char *host, const char *detail)
{
	const char *kind = model->field[KIND], *from = model->field[HOST];
	if (!strcmp(kind, "setting") && strncmp(model->field[DETAIL], "environment", 11) &&
	    strncmp(detail, "environment", 11))
		printf("copy gradcomp.conf and conf.d of %s to %s", from, host);
	else if (!strcmp(kind, "setting"))
		printf("look for what sets the environment on %s", host);
	else if (!strcmp(kind, "plugin of"))
		printf("on %s: name spank_gradcomp.so of gradcomp %s in plugstack.conf", host, model->field[VALUE]);
	else if (!strcmp(kind, "mtu"))
		printf("on %s: ip link set dev %s mtu %s", host, *detail ? detail : "INTERFACE", model->field[VALUE]);
	else if (!strcmp(kind, "cache"))
		printf("on %s: install -d -m 1777 -o root %s", host, model->field[DETAIL]);
	else if (*model->field[DETAIL])
		printf("install on %s what %s has as %s", host, from, model->field[DETAIL]);
	else
		printf("install the same gradcomp on %s", host);
	putchar('\n');
}

/* Compares facts of one thing, sorted by node. A node that is not among them has none. */
static void compare(doctor *d, const told *f, size_t n)
{
	const told *model = f;
	size_t most = 0, at = 0;
	for (size_t i = 0; i < n; i++) {
		size_t alike = 0;

		for (size_t k = 0; k < n; k++)
			alike += !strcmp(f[i].field[VALUE], f[k].field[VALUE]);
		if (alike > most)
			most = alike, model = &f[i];
	}
	for (size_t h = 0; h < d->hosts.count; h++) {
		const told *here = at < n && !strcmp(f[at].field[HOST], d->hosts.name[h]) ? &f[at++] : NULL;

		if (here && !strcmp(here->field[VALUE], model->field[VALUE]))
			continue;
		printf("%s: %s%s%s is %s%s%s%s, on %s it is %s: ", d->hosts.name[h], model->field[KIND],
		       *model->field[NAME] ? " " : "", model->field[NAME], here ? here->field[VALUE] : "missing",
		       here && *here->field[DETAIL] ? " (" : "", here ? here->field[DETAIL] : "",
		       here && *here->field[DETAIL] ? ")" : "", model->field[HOST], model->field[VALUE]);
		remedy(model, d->hosts.name[h], here ? here->field[DETAIL] : "");
		d->wrong++;
	}
}

static void compare_all(doctor *d)
{
	if (d->n)
		qsort(d->facts, d->n, sizeof *d->facts, by_name);
	for (size_t i = 0; i < d->n; i++)
		if (!strcmp(d->facts[i].field[KIND], "clock")) /* which every node has */
			strset_add(&d->hosts, d->facts[i].field[HOST], strlen(d->facts[i].field[HOST]));
	for (size_t i = 0, n; i < d->n; i += n) {
		for (n = 1; i + n < d->n && same_thing(&d->facts[i], &d->facts[i + n]);)
			n++;
		if (!strcmp(d->facts[i].field[KIND], "clock"))
			continue;
		if (strcmp(d->facts[i].field[KIND], "wrong")) {
			compare(d, &d->facts[i], n);
			continue;
		}
		for (size_t k = i; k < i + n; k++, d->wrong++)
			printf("%s: %s: %s\n", d->facts[k].field[HOST], d->facts[k].field[VALUE],
			       d->facts[k].field[DETAIL]);
	}
}

static bool try_join(doctor *d, const char *what, const char *which, int nodes, bool relative, const char *records)
{
	if (step(d, what, nodes, relative, records) == 0)
		return true;
	printf("%s: ranks cannot form a job: %s\n", which, d->last[0] ? d->last : "srun does not say why");
	d->wrong++;
	return false;
}

static int by_rate(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Compares what was sent between pairs, facts from `from` on. The better one of a pair that was tried twice counts. */
static void compare_pairs(doctor *d, size_t from)
{
	double *rate = calloc(d->n - from + 1, sizeof *rate), middle;
	size_t n = 0;
	for (size_t i = from; rate && i < d->n; i++) {
		told *f = &d->facts[i];

		if (!strcmp(f->field[KIND], "network"))
			printf("ranks use the network %s%s%s\n", f->field[NAME], *f->field[VALUE] ? ": " : "",
			       f->field[VALUE]);
		if (!strcmp(f->field[KIND], "other"))
			printf("they could use %s%s%s\n", f->field[NAME], *f->field[VALUE] ? ": " : "",
			       f->field[VALUE]);
		for (size_t k = i + 1; k < d->n && !strcmp(f->field[KIND], "pair"); k++)
			if (same_thing(f, &d->facts[k]) && !strcmp(f->field[HOST], d->facts[k].field[HOST]) &&
			    strtod(d->facts[k].field[VALUE], NULL) >= strtod(f->field[VALUE], NULL))
				f->field[KIND] = "";
		if (!strcmp(f->field[KIND], "pair"))
			rate[n++] = strtod(f->field[VALUE], NULL);
	}
	if (rate)
		qsort(rate, n, sizeof *rate, by_rate);
	middle = rate && n ? rate[n / 2] : 0;
	for (size_t i = from; rate && i < d->n; i++) {
		const told *f = &d->facts[i];
		double mbit = strcmp(f->field[KIND], "pair") ? middle : strtod(f->field[VALUE], NULL);

		if (strcmp(f->field[KIND], "pair") || (mbit > 0 && mbit >= middle / PAIR_SLOWER))
			continue;
		if (*f->field[DETAIL])
			printf("%s: %s is not reached: %s\n", f->field[HOST], f->field[NAME], f->field[DETAIL]);
		else if (mbit > 0)
			printf("%s: %s is reached at %.1f Mbit/s, most others at %.0f: look at the cable and the switch between them\n",
			       f->field[HOST], f->field[NAME], mbit, middle);
		else
			printf("%s: packets of full size do not reach %s: an MTU on the way is smaller than that of the nodes; ping -M do -s SIZE %s "
			       "finds which fit, and ip link set dev INTERFACE mtu N sets it\n",
			       f->field[HOST], f->field[NAME], f->field[NAME]);
		d->wrong++;
	}
	free(rate);
}

/* Ranks of a step join all the same when srun is told to, so nothing is wrong. */
static void tell_mpi_default(void)
{
	char line[512], type[40] = "pmix";
	const char *own = getenv("SLURM_MPI_TYPE");
	/* NOLINTNEXTLINE(cert-env33-c): the command is a constant */
	FILE *f = own ? NULL : popen("scontrol show config 2>/dev/null", "r");
	if (own)
		snprintf(type, sizeof type, "%s", own);
	while (f && fgets(line, sizeof line, f))
		(void)sscanf(line, "MpiDefault = %39s", type);
	if (f)
		pclose(f);
	if (strncmp(type, "pmix", 4))
		printf("ranks need srun --mpi=pmix, for %s=%s: MpiDefault=pmix in slurm.conf spares users that\n",
		       own ? "SLURM_MPI_TYPE" : "MpiDefault", type);
}

static int examine(int nodes, bool allocated, const char *records)
{
	doctor d = {.n = 0};
	int status = step(&d, "--facts", nodes, false, records);
	if (status) {
		printf("no step runs on all of the %d nodes: %s\n", nodes,
		       d.last[0] ? d.last : "srun does not say why");
		d.wrong++;
	}
	compare_all(&d);
	tell_mpi_default();
	if (!status) {
		size_t from = d.n;

		if (try_join(&d, "--pairs", "over all nodes", nodes, false, records))
			compare_pairs(&d, from);
		if (allocated && nodes > 2)
			try_join(&d, "--join", "over all nodes but the first", nodes - 1, true, records);
	}
	if (!d.wrong)
		printf("%d nodes are alike, and ranks on them form a job\n", nodes);
	for (size_t i = 0; i < d.n; i++)
		free(d.facts[i].line);
	free(d.facts);
	strset_clear(&d.hosts);
	return d.wrong != 0;
}

int cmd_doctor(int argc, char **argv)
{
	const char *nodes = NULL, *records = NULL, *allocated = getenv("SLURM_JOB_ID") ? getenv("SLURM_NNODES") : NULL;
	int only_facts = 0, only_join = 0, pairs = 0, status;
	const command_option options[] = {{"--nodes", &nodes, NULL},      {"--records", &records, NULL},
	                                  {"--facts", NULL, &only_facts}, {"--join", NULL, &only_join},
	                                  {"--pairs", NULL, &pairs},      {NULL, NULL, NULL}};
	int64_t n = 0, most = 65536;
	status = command_take_options(argc, argv, usage, options, NULL, 0);
	if (status >= 0)
		return status;
	records = records ? records : PROLOG_RECORDS;
	if (only_facts)
		return facts(records);
	if (only_join || pairs)
		return join(pairs);
	if (allocated && number_int(allocated, &most) != NUMBER_OK)
		return command_usage_value(usage, "SLURM_NNODES", allocated, "Slurm sets it to a number of nodes");
	if (!nodes && !allocated)
		return command_usage_error(
			usage, "doctor needs an allocation, as in salloc -N2 gradcomp doctor, or --nodes N");
	n = most;
	if (nodes && (number_int(nodes, &n) != NUMBER_OK || n < 1 || n > most))
		return command_usage_value(usage, "--nodes", nodes,
		                           allocated ? "a number of nodes, at most those of the allocation"
		                                     : "a number of nodes");
	return examine((int)n, allocated != NULL, records);
}
