/* MPI's profiling interface: collectives of floats of an unmodified MPI program, coded as the policy says (gradcomp.h).
 *
 * The library is loaded before the program's MPI (LD_PRELOAD), once compiled for Open MPI and once for MPICH, whose
 * handles differ. It needs no MPI itself: what it calls is looked up when the program calls it, so that a shell or a
 * launcher that is given it too goes on as ever. libgradcomp is opened when GRADCOMP asks for something.
 *
 * MPI_Init makes a job of MPI_COMM_WORLD, whose ranks tell each other their addresses over MPI. A communicator is a
 * group of that job, made at its first call that may be coded and kept as an attribute; it has a coder for each entry
 * of the policy that was used on it.
 *
 * All ranks of a communicator must go the same way. What they decide by is equal on all of them (operation, type,
 * length, and the name that rank 0 has for the communicator); what is not (where buffers are, memory that is left,
 * MPI_IN_PLACE) is put to the vote, an all-reduce of one number. The vote also brings all ranks into the call: from there
 * on none of them waits for a message that a rank inside libgradcomp, where MPI gets no turn, has still to send.
 * A call that may not wait has no vote: it goes by what is equal, and brings what is elsewhere into host memory. A rank
 * that cannot say what the others need to hear ends the program. */
#include <mpi.h>

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gradcomp/coder.h>
#include <gradcomp/gradcomp.h>

#define EXPORT __attribute__((visibility("default")))
#ifdef OPEN_MPI
#define MINE "Open MPI"
#else
#define MINE "MPICH"
#endif

/* clang-format off */
/* Names the calls of libgradcomp that are used. */
#define LIBRARY_CALLS(each) \
	each(coder_all_gather) each(coder_all_gather_start) each(coder_check) each(coder_create) each(coder_free) \
	each(coder_reduce_scatter_start) each(coder_wait) each(group_create) each(group_free) each(job_check) each(job_create) \
	each(job_free) each(job_world) each(policy_create) each(policy_entries) each(policy_free) each(policy_get) \
	each(policy_match) each(policy_role) each(policy_text)
/* Names those of MPI. */
#define MPI_CALLS(each) \
	each(Abort) each(Add_error_class) each(Add_error_code) each(Add_error_string) each(Allgather) each(Allgatherv) \
	each(Allreduce) each(Barrier) each(Bcast) each(Comm_call_errhandler) each(Comm_create_keyval) each(Comm_delete_attr) \
	each(Comm_disconnect) each(Comm_dup) each(Comm_free) each(Comm_free_keyval) each(Comm_get_attr) each(Comm_get_name) each(Comm_group) \
	each(Comm_rank) each(Comm_set_attr) each(Comm_size) each(Comm_test_inter) each(Finalize) each(Grequest_complete) \
	each(Grequest_start) each(Group_free) each(Group_translate_ranks) each(Iallreduce) each(Init) each(Init_thread) \
	each(Reduce_scatter) each(Reduce_scatter_block) each(Sendrecv) each(Status_set_cancelled) each(Status_set_elements) each(Test) \
	each(Type_free) each(Type_get_contents) each(Type_get_envelope) each(Type_size)
/* Names its handles, which Open MPI has as addresses of variables with these names. */
#define MPI_HANDLES(each) \
	each(MPI_Comm, comm_null, MPI_COMM_NULL) each(MPI_Comm, comm_self, MPI_COMM_SELF) \
	each(MPI_Comm, comm_world, MPI_COMM_WORLD) \
	each(MPI_Datatype, byte, MPI_BYTE) each(MPI_Datatype, datatype_null, MPI_DATATYPE_NULL) \
	each(MPI_Datatype, float, MPI_FLOAT) each(MPI_Datatype, int, MPI_INT) each(MPI_Datatype, int64_t, MPI_INT64_T) \
	each(MPI_Datatype, real, MPI_REAL) each(MPI_Datatype, real4, MPI_REAL4) \
	each(MPI_Op, op_min, MPI_MIN) each(MPI_Op, op_sum, MPI_SUM)
/* clang-format on */

/* A reduce-scatter is copied and sent in so many pieces at most, of so many numbers at least: the next one is copied
 * while this one is on its way. */
#define PIECES 16
#define PIECE_NUMBERS (2u << 20)
/* How often the vote is asked for before it is looked whether a rank has gone. */
#define TESTS 64

static struct {
#define MPI_CALL(name) __typeof__(PMPI_##name) *name;
	MPI_CALLS(MPI_CALL)
#define MPI_HANDLE(type, name, value) type the_##name;
	MPI_HANDLES(MPI_HANDLE)
} mpi;

/* A communicator. */
typedef struct communicator {
	struct communicator *next;
	MPI_Comm comm;
	gradcomp_group *group; /* NULL: nothing is coded */
	int rank, nranks;
	gradcomp_role role;
	char name[MPI_MAX_OBJECT_NAME]; /* empty: it has none */
	int vote[2];                    /* this rank's, and that of all */
	bool open;                      /* a vote that never ends: a rank has gone */
	uint64_t *counts, *part;        /* nranks each */
	float *work;
	uint64_t room; /* numbers in it */
	int flights;   /* under way; the lock is around it */
	gradcomp_coder *coders[];
} communicator;

/* The groups of one list of ranks. Threads may make two communicators of the same ranks, on some ranks in another
 * order than on others: which is which the first rank of the list says. */
typedef struct roll {
	struct roll *next;
	int *ranks, nranks;
	int64_t given; /* by this rank, the first of the list */
	int64_t made;
	gradcomp_group **groups; /* made, NULL when taken */
} roll;

static struct {
	struct {
#define MEMBER(name) __typeof__(gradcomp_##name) *name;
		LIBRARY_CALLS(MEMBER)
	} call;
	void *library;
	gradcomp_job *job; /* NULL: nothing is coded */
	gradcomp_policy *policy;
	gradcomp_policy_entry *entries;
	uint32_t nentries;
	int rank, nranks;
	int keyval;
	MPI_Comm self; /* with `threads`: of this rank alone, for copies */
	int code;      /* MPI's, of a failure; the lock is around it */
	bool threads;  /* on all ranks any thread may call MPI */
	pthread_mutex_t lock;
	pthread_cond_t landed;
	communicator *first;
	roll *rolls;
} pmpi = {.keyval = MPI_KEYVAL_INVALID, .lock = PTHREAD_MUTEX_INITIALIZER, .landed = PTHREAD_COND_INITIALIZER};

__attribute__((format(printf, 3, 4))) static gradcomp_status set(gradcomp_error *err, gradcomp_status st,
                                                                 const char *format, ...)
{
	va_list args;
	err->status = st;
	va_start(args, format);
	vsnprintf(err->text, sizeof err->text, format, args);
	va_end(args);
	return st;
}

/* Makes an error of MPI of a failure, says it once, and gives it to the communicator's error handler. Returns its code. */
static int fail(MPI_Comm comm, const char *function, const char *where, const gradcomp_error *err)
{
	char text[MPI_MAX_ERROR_STRING];
	int class = MPI_ERR_OTHER, code;
	snprintf(text, sizeof text, "gradcomp: %.*s", (int)(sizeof text - sizeof "gradcomp: "), err->text);
	pthread_mutex_lock(&pmpi.lock);
	/* The first is the cause of all that follow. */
	if (!pmpi.code) {
		fprintf(stderr, "gradcomp: %s on %s: %s\n", function, *where ? where : "a communicator without a name",
		        err->text);
		fflush(stderr);
		if (!mpi.Add_error_class(&class) && !mpi.Add_error_code(class, &pmpi.code)) {
			mpi.Add_error_string(class, "gradcomp has failed");
			mpi.Add_error_string(pmpi.code, text);
		}
	}
	code = pmpi.code ? pmpi.code : MPI_ERR_OTHER;
	pthread_mutex_unlock(&pmpi.lock);
	mpi.Comm_call_errhandler(comm, code);
	return code;
}

/* Files that are loaded and may be MPI: a program may have opened it without showing it to others, as Python does. */
typedef struct candidates {
	char *file[16];
	int n;
} candidates;

static int candidate(struct dl_phdr_info *info, size_t size, void *ctx)
{
	candidates *all = ctx;
	const char *name = strrchr(info->dlpi_name, '/');
	(void)size;
	if (name && !strncmp(name, "/libmpi", 7) && all->n < 16 && (all->file[all->n] = strdup(info->dlpi_name)))
		all->n++;
	return 0;
}

/* Finds the program's MPI, which is there by the time that the program calls it. */
static void find_mpi(void)
{
	candidates all = {.n = 0};
	void *library = RTLD_DEFAULT;
	const char *lacking = dlsym(library, "PMPI_Init") ? NULL : "PMPI_Init";
	if (lacking)
		dl_iterate_phdr(candidate, &all);
	for (int i = 0; i < all.n; i++) {
		void *opened = lacking ? dlopen(all.file[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
		if (opened && dlsym(opened, "PMPI_Init")) {
			library = opened;
			lacking = NULL;
		}
		free(all.file[i]);
	}
#define FIND_CALL(name) \
	if (!(*(void **)&mpi.name = dlsym(library, "PMPI_" #name)) && !lacking) \
		lacking = "PMPI_" #name;
	MPI_CALLS(FIND_CALL)
#ifdef OPEN_MPI
#define FIND_HANDLE(type, name, value) mpi.the_##name = dlsym(library, "ompi_mpi_" #name);
	const bool other = !dlsym(library, "ompi_mpi_comm_world");
#else
#define FIND_HANDLE(type, name, value) mpi.the_##name = value;
	const bool other = dlsym(library, "ompi_mpi_comm_world");
#endif
	MPI_HANDLES(FIND_HANDLE)
	if (lacking)
		fprintf(stderr, "gradcomp: this program's MPI has no %s: take the library out of LD_PRELOAD\n",
		        lacking);
	else if (other)
		fprintf(stderr, "gradcomp: the program's MPI is not " MINE
		                ", which this library is for: name the other one of its folder in LD_PRELOAD\n");
	if (lacking || other)
		_exit(1);
}

static void ready(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_mpi);
}

/* Opens libgradcomp: that of the folder two above this one, else one that the loader finds. */
static gradcomp_status open_library(gradcomp_error *err)
{
	static const char file[] = "libgradcomp.so.0";
	char path[PATH_MAX + sizeof file] = "";
	Dl_info here = {0};
	if (dladdr(&pmpi, &here) && realpath(here.dli_fname, path)) {
		for (int up = 0; up < 3 && strrchr(path, '/'); up++)
			*strrchr(path, '/') = 0;
		strcat(strcat(path, "/"), file);
	}
	pmpi.library = dlopen(access(path, F_OK) ? file : path, RTLD_NOW | RTLD_LOCAL);
	if (!pmpi.library)
		return set(err, GRADCOMP_ERR_NOTFOUND, "%s", dlerror());
#define FIND(name) \
	if (!(*(void **)&pmpi.call.name = dlsym(pmpi.library, "gradcomp_" #name))) \
		return set(err, GRADCOMP_ERR_ABI, "%s has no gradcomp_" #name ": it is of another version than this", \
		           path);
	LIBRARY_CALLS(FIND)
	return GRADCOMP_OK;
}

/* Reads the policy. Nothing is kept between calls, which no program says to be of the same tensor: what needs that is
 * refused. */
static gradcomp_status read_policy(gradcomp_error *err)
{
	gradcomp_error why = {0};
	gradcomp_status st = pmpi.call.policy_create(NULL, &pmpi.policy, err);
	if (st)
		return st;
	pmpi.nentries = pmpi.call.policy_entries(pmpi.policy);
	pmpi.entries = calloc(pmpi.nentries + 1, sizeof *pmpi.entries);
	if (!pmpi.entries)
		return set(err, GRADCOMP_ERR_NOMEM, "no memory for a policy");
	for (uint32_t i = 0; i < pmpi.nentries; i++) {
		gradcomp_policy_entry *e = &pmpi.entries[i];
		e->struct_size = sizeof *e;
		st = pmpi.call.policy_get(pmpi.policy, i, e, err);
		if (!st && pmpi.call.coder_check(e->spec, e->collective, &why))
			st = set(err, why.status, "an MPI program's calls cannot be compressed by '%s': %s", e->spec,
			         why.text);
		if (st)
			return st;
	}
	return GRADCOMP_OK;
}

/* Says whether an entry has anything compressed. */
static bool is_asked_for(void)
{
	bool any = false;
	for (uint32_t i = 0; i < pmpi.nentries; i++)
		any |= strcmp(pmpi.entries[i].spec, "none") != 0;
	return any;
}

/* Ends the program where the others would wait for this rank for ever. */
static _Noreturn void give_up(const char *why)
{
	fprintf(stderr, "gradcomp: rank %d: %s\n", pmpi.rank, why);
	fflush(stderr);
	mpi.Abort(mpi.the_comm_world, 1);
	abort();
}

/* Ends the program when a rank has a reason to: the first that has says it, and is the one that fails. */
static void go_on_together(const char *reason)
{
	int mine = reason ? pmpi.rank : pmpi.nranks, first;
	mpi.Allreduce(&mine, &first, 1, mpi.the_int, mpi.the_op_min, mpi.the_comm_world);
	if (first == pmpi.nranks)
		return;
	if (first == pmpi.rank)
		fprintf(stderr, "gradcomp: rank %d: %s\n", pmpi.rank, reason);
	/* Of a program that aborts MPICH's launcher need not pass on what was said last. */
	mpi.Finalize();
	exit(first == pmpi.rank);
}

/* Holds what the ranks tell each other before they are a job. */
typedef struct meeting {
	char *texts;
	int *begin; /* nranks + 1 */
} meeting;

static void meet(meeting *m, const char *mine, size_t bytes)
{
	int length = (int)bytes, *lengths = malloc((size_t)pmpi.nranks * sizeof *lengths);
	m->begin = calloc((size_t)pmpi.nranks + 1, sizeof *m->begin);
	if (!lengths || !m->begin)
		give_up("no memory for the addresses of the ranks");
	mpi.Allgather(&length, 1, mpi.the_int, lengths, 1, mpi.the_int, mpi.the_comm_world);
	for (int r = 0; r < pmpi.nranks; r++)
		m->begin[r + 1] = m->begin[r] + lengths[r];
	m->texts = malloc((size_t)m->begin[pmpi.nranks] + 1);
	if (!m->texts)
		give_up("no memory for the addresses of the ranks");
	mpi.Allgatherv(mine, length, mpi.the_byte, m->texts, lengths, m->begin, mpi.the_byte, mpi.the_comm_world);
	free(lengths);
}

/* The first that a rank sets is its own record. Others it sets for ranks that are not there; here all are. */
static int store_set(void *ctx, const char *key, const void *value, size_t bytes)
{
	meeting *m = ctx;
	(void)key;
	if (!m->texts)
		meet(m, value, bytes);
	return 0;
}

static long store_get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	const meeting *m = ctx;
	int rank, end = 0;
	(void)timeout_ms;
	/* That a rank has heard the others: it has, or it would not be here. */
	if (sscanf(key, "gradcomp/%d%n", &rank, &end) != 1 || key[end] || rank < 0 || rank >= pmpi.nranks) {
		memcpy(value, "1", 1);
		return 1;
	}
	int bytes = m->begin[rank + 1] - m->begin[rank];
	memcpy(value, m->texts + m->begin[rank], (size_t)bytes < capacity ? (size_t)bytes : capacity);
	return bytes;
}

static gradcomp_status join(gradcomp_error *err)
{
	/* The policy is not the job's compressor: there are no gradients here. */
	static const char *const settings[] = {"gradcomp.compressor=none", NULL};
	meeting m = {0};
	const gradcomp_store store = {.struct_size = sizeof store,
	                              .rank = pmpi.rank,
	                              .nranks = pmpi.nranks,
	                              .ctx = &m,
	                              .set = store_set,
	                              .get = store_get};
	const gradcomp_job_options options = {.struct_size = sizeof options, .store = &store, .settings = settings};
	char refusal[sizeof err->text + 16];
	gradcomp_status st = pmpi.call.job_create(&options, &pmpi.job, err);
	/* It has failed before it told the others anything. */
	if (!m.texts) {
		snprintf(refusal, sizeof refusal, "E%d %s", pmpi.rank, err->text);
		meet(&m, refusal, strlen(refusal));
	}
	explicit_bzero(m.texts, (size_t)m.begin[pmpi.nranks]);
	free(m.texts);
	free(m.begin);
	return st;
}

static int copy_nothing(MPI_Comm comm, int keyval, void *extra, void *value, void *copy, int *flag)
{
	(void)comm, (void)keyval, (void)extra, (void)value, (void)copy;
	*flag = 0;
	return MPI_SUCCESS;
}

/* Frees what a communicator has, when it is freed. */
static int forget(MPI_Comm comm, int keyval, void *value, void *extra)
{
	communicator *c = value, **at = &pmpi.first;
	(void)comm, (void)keyval, (void)extra;
	pthread_mutex_lock(&pmpi.lock);
	while (*at && *at != c)
		at = &(*at)->next;
	if (*at)
		*at = c->next;
	pthread_mutex_unlock(&pmpi.lock);
	for (uint32_t i = 0; i < pmpi.nentries; i++)
		pmpi.call.coder_free(c->coders[i]);
	if (c->group)
		pmpi.call.group_free(c->group);
	free(c->counts);
	free(c->work);
	if (!c->open)
		free(c);
	return MPI_SUCCESS;
}

/* Makes a number of a text: FNV-1a. Never 0. */
static int64_t number_of(const char *text)
{
	uint64_t h = 14695981039346656037u;
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 1099511628211u;
	return (int64_t)(h | 1);
}

static void drop_policy(void)
{
	if (pmpi.policy)
		pmpi.call.policy_free(pmpi.policy);
	free(pmpi.entries);
	pmpi.policy = NULL;
	pmpi.entries = NULL;
	pmpi.nentries = 0;
}

static communicator *made_of(MPI_Comm comm, int *rc);
static gradcomp_status coder_of(communicator *c, int entry, gradcomp_error *err);
static int entry_for(const communicator *c, gradcomp_policy_operation operation, uint64_t numbers);

/* A call that may not wait (MPI_Iallreduce) makes no coder: that of MPI_COMM_WORLD is made here. */
static gradcomp_status prepare_world(gradcomp_error *err)
{
	int rc = MPI_SUCCESS;
	communicator *world = made_of(mpi.the_comm_world, &rc);
	int entry = world ? entry_for(world, GRADCOMP_POLICY_ALL_REDUCE, INT_MAX) : -1;
	if (mpi.Comm_dup(mpi.the_comm_self, &pmpi.self))
		give_up("MPI_COMM_SELF cannot be copied");
	if (rc)
		return set(err, GRADCOMP_ERR_IO, "MPI_COMM_WORLD cannot be prepared");
	return entry < 0 ? GRADCOMP_OK : coder_of(world, entry, err);
}

static void begin(int level)
{
	const char *asked = secure_getenv("GRADCOMP");
	gradcomp_error err = {0};
	gradcomp_status st = GRADCOMP_OK;
	int64_t mine = 0, root;
	int least = MPI_THREAD_SINGLE;
	mpi.Comm_rank(mpi.the_comm_world, &pmpi.rank);
	mpi.Comm_size(mpi.the_comm_world, &pmpi.nranks);
	if (asked && *asked && strcmp(asked, "off")) {
		st = open_library(&err);
		st = st ? st : read_policy(&err);
		if (!st && is_asked_for())
			mine = number_of(pmpi.call.policy_text(pmpi.policy));
	}
	root = mine;
	mpi.Bcast(&root, 1, mpi.the_int64_t, 0, mpi.the_comm_world);
	if (!st && mine != root)
		st = set(
			&err, GRADCOMP_ERR_MISMATCH,
			"GRADCOMP is '%.100s' here, and rank 0 has another policy: give it to all ranks alike (mpirun -x GRADCOMP)",
			asked ? asked : "");
	go_on_together(st ? err.text : NULL);
	if (mine && pmpi.nranks > 1) {
		st = join(&err);
		go_on_together(st ? err.text : NULL);
		mpi.Comm_create_keyval(copy_nothing, forget, &pmpi.keyval, NULL);
		mpi.Allreduce(&level, &least, 1, mpi.the_int, mpi.the_op_min, mpi.the_comm_world);
		pmpi.threads = least == MPI_THREAD_MULTIPLE;
		st = pmpi.threads ? prepare_world(&err) : GRADCOMP_OK;
		go_on_together(st ? err.text : NULL);
	} else {
		drop_policy();
	}
}

static void end(void)
{
	gradcomp_error err = {0};
	if (!pmpi.job)
		return;
	for (communicator *c; (c = pmpi.first);)
		if (mpi.Comm_delete_attr(c->comm, pmpi.keyval))
			forget(c->comm, pmpi.keyval, c, NULL);
	mpi.Comm_free_keyval(&pmpi.keyval);
	if (pmpi.threads)
		mpi.Comm_free(&pmpi.self);
	for (roll *l; (l = pmpi.rolls);) {
		for (int64_t i = 0; i < l->made; i++)
			pmpi.call.group_free(l->groups[i]);
		pmpi.rolls = l->next;
		free(l->groups);
		free(l->ranks);
		free(l);
	}
	/* A failure has been told where it came. */
	if (pmpi.call.job_free(pmpi.job, &err) && !pmpi.code)
		fprintf(stderr, "gradcomp: rank %d: MPI_Finalize: %s\n", pmpi.rank, err.text);
	pmpi.job = NULL;
	drop_policy();
}

static roll *roll_of(const int *ranks, int nranks)
{
	roll *l = pmpi.rolls;
	while (l && (l->nranks != nranks || memcmp(l->ranks, ranks, (size_t)nranks * sizeof *ranks)))
		l = l->next;
	if (l)
		return l;
	l = calloc(1, sizeof *l);
	int *copy = malloc((size_t)nranks * sizeof *copy);
	if (!l || !copy) {
		free(l);
		free(copy);
		return NULL;
	}
	memcpy(copy, ranks, (size_t)nranks * sizeof *copy);
	*l = (roll){.next = pmpi.rolls, .ranks = copy, .nranks = nranks};
	return pmpi.rolls = l;
}

/* Returns the number of the next communicator of these ranks, of which this one is the first; -1 without memory. */
static int64_t next_number(const int *ranks, int nranks)
{
	pthread_mutex_lock(&pmpi.lock);
	roll *l = roll_of(ranks, nranks);
	int64_t number = l ? l->given++ : -1;
	pthread_mutex_unlock(&pmpi.lock);
	return number;
}

/* Takes the group of that number, which is made of these ranks with all before it. */
static gradcomp_status take_group(const int *ranks, int nranks, int64_t number, gradcomp_group **out,
                                  gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&pmpi.lock);
	roll *l = number < 0 ? NULL : roll_of(ranks, nranks);
	gradcomp_group **more = NULL;
	if (l && number >= l->made) {
		more = realloc(l->groups, (size_t)(number + 1) * sizeof *more);
		l->groups = more ? more : l->groups;
	}
	if (!l || (number >= l->made && !more))
		st = set(err, GRADCOMP_ERR_NOMEM, "no memory for a group of %d ranks", nranks);
	while (!st && l->made <= number) {
		st = pmpi.call.group_create(pmpi.call.job_world(pmpi.job), ranks, nranks, &l->groups[l->made], err);
		l->made += !st;
	}
	if (!st) {
		*out = l->groups[number];
		l->groups[number] = NULL;
	}
	pthread_mutex_unlock(&pmpi.lock);
	return st;
}

/* The numbers that a communicator's ranks have in MPI_COMM_WORLD; NULL where one is in none: it was spawned, and all
 * ranks see some that are in none of theirs. */
static int *world_ranks(MPI_Comm comm, int nranks)
{
	MPI_Group of, world;
	int *ranks = malloc(2 * (size_t)nranks * sizeof *ranks);
	if (!ranks || mpi.Comm_group(comm, &of) || mpi.Comm_group(mpi.the_comm_world, &world))
		give_up("no memory for the ranks of a communicator");
	for (int r = 0; r < nranks; r++)
		ranks[nranks + r] = r;
	mpi.Group_translate_ranks(of, nranks, ranks + nranks, world, ranks);
	mpi.Group_free(&of);
	mpi.Group_free(&world);
	for (int r = 0; r < nranks; r++)
		if (ranks[r] == MPI_UNDEFINED) {
			free(ranks);
			return NULL;
		}
	return ranks;
}

/* Holds what rank 0 says of a communicator. */
typedef struct introduction {
	int64_t number; /* the group's among those of its ranks */
	char name[MPI_MAX_OBJECT_NAME];
} introduction;

/* Makes the group, on all ranks or on none. Collective over the communicator. */
static gradcomp_status enter(communicator *c, gradcomp_error *err)
{
	int can, all = 0;
	int *ranks = world_ranks(c->comm, c->nranks), length = 0;
	bool world = c->comm == mpi.the_comm_world;
	introduction say = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (!ranks)
		return GRADCOMP_OK;
	if (c->rank == 0) {
		say.number = world ? 0 : next_number(ranks, c->nranks);
		mpi.Comm_get_name(c->comm, say.name, &length);
	}
	mpi.Bcast(&say, (int)sizeof say, mpi.the_byte, 0, c->comm);
	memcpy(c->name, say.name, sizeof c->name);
	c->role = pmpi.call.policy_role(*c->name ? c->name : NULL, c->nranks, pmpi.nranks);
	c->counts = malloc(2 * (size_t)c->nranks * sizeof *c->counts);
	if (!c->counts)
		st = set(err, GRADCOMP_ERR_NOMEM, "no memory for %d counts", c->nranks);
	else if (world)
		c->group = pmpi.call.job_world(pmpi.job);
	else
		st = take_group(ranks, c->nranks, say.number, &c->group, err);
	c->part = c->counts ? c->counts + c->nranks : NULL;
	free(ranks);
	can = st == GRADCOMP_OK;
	if (mpi.Allreduce(&can, &all, 1, mpi.the_int, mpi.the_op_min, c->comm) || !all) {
		st = st ? st : set(err, GRADCOMP_ERR_PEER, "another rank cannot make its group");
		if (c->group && !world)
			pmpi.call.group_free(c->group);
		c->group = NULL;
	}
	return st;
}

/* Finds what is known of a communicator, made when it is met first, which is collective over it; NULL: nothing of it is coded.
 * *rc: MPI's. */
static communicator *made_of(MPI_Comm comm, int *rc)
{
	communicator *c;
	gradcomp_error err = {0};
	gradcomp_status st = GRADCOMP_OK;
	int known = 0, inter = 1;
	if (comm == mpi.the_comm_null || (*rc = mpi.Comm_get_attr(comm, pmpi.keyval, &c, &known)))
		return NULL;
	if (known)
		return c->group ? c : NULL;
	c = calloc(1, sizeof *c + pmpi.nentries * sizeof *c->coders);
	if (!c)
		give_up("no memory for a communicator");
	c->comm = comm;
	mpi.Comm_test_inter(comm, &inter);
	if (!inter) {
		mpi.Comm_rank(comm, &c->rank);
		mpi.Comm_size(comm, &c->nranks);
	}
	if (!inter && c->nranks > 1)
		st = enter(c, &err);
	pthread_mutex_lock(&pmpi.lock);
	c->next = pmpi.first;
	pmpi.first = c;
	pthread_mutex_unlock(&pmpi.lock);
	*rc = mpi.Comm_set_attr(comm, pmpi.keyval, c);
	if (st)
		*rc = fail(comm, "the first call", c->name, &err);
	return !*rc && c->group ? c : NULL;
}

/* Which entry of the policy is for a call; -1: it goes as it is. */
static int entry_for(const communicator *c, gradcomp_policy_operation operation, uint64_t numbers)
{
	const gradcomp_policy_call call = {.struct_size = sizeof call,
	                                   .operation = operation,
	                                   .dtype = GRADCOMP_F32,
	                                   .role = c->role,
	                                   .name = *c->name ? c->name : NULL,
	                                   .bytes = numbers * sizeof(float)};
	return pmpi.call.policy_match(pmpi.policy, &call);
}

/* Makes the coder of an entry. Collective over the communicator. */
static gradcomp_status coder_of(communicator *c, int entry, gradcomp_error *err)
{
	const gradcomp_policy_entry *e = &pmpi.entries[entry];
	char name[MPI_MAX_OBJECT_NAME + 32];
	const gradcomp_coder_options options = {
		.struct_size = sizeof options, .collective = e->collective, .name = name};
	if (*c->name)
		snprintf(name, sizeof name, "%s", c->name);
	else
		snprintf(name, sizeof name, "a communicator of %d", c->nranks);
	return c->coders[entry] ? GRADCOMP_OK
	                        : pmpi.call.coder_create(c->group, e->spec, &options, &c->coders[entry], err);
}

/* How a rank, or all of them, can code a call. The least of the ranks' votes counts. */
typedef enum vote { CANNOT, IN_ONE_PIECE, CAN } vote;

/* Asks all ranks of the communicator. Returns when all of them are there, or one has gone. */
static gradcomp_status ask_all(communicator *c, vote mine, vote *all, gradcomp_error *err)
{
	MPI_Request request;
	int done = 0;
	gradcomp_status st = pmpi.call.job_check(pmpi.job, err);
	if (st)
		return st;
	c->vote[0] = mine;
	if (mpi.Iallreduce(&c->vote[0], &c->vote[1], 1, mpi.the_int, mpi.the_op_min, c->comm, &request))
		return set(err, GRADCOMP_ERR_IO, "MPI_Iallreduce has failed");
	for (unsigned n = 1; !done; n++) {
		st = n % TESTS ? GRADCOMP_OK : pmpi.call.job_check(pmpi.job, err);
		c->open = st != GRADCOMP_OK;
		if (st)
			return st;
		if (n % TESTS == 0)
			sched_yield();
		if (mpi.Test(&request, &done, MPI_STATUS_IGNORE))
			return set(err, GRADCOMP_ERR_IO, "MPI_Test has failed");
	}
	*all = (vote)c->vote[1];
	return GRADCOMP_OK;
}

static bool reserve(communicator *c, uint64_t numbers)
{
	if (numbers <= c->room)
		return true;
	free(c->work);
	c->work = malloc(numbers * sizeof *c->work);
	c->room = c->work ? numbers : 0;
	return c->work;
}

/* Says whether a buffer can be read here. Memory of a GPU is known as such to the driver, if there is one. */
static bool is_here(const void *p)
{
	enum { MEMORY_TYPE = 2, ON_DEVICE = 2 };
	int (*ask)(void *, int, unsigned long long);
	unsigned type = 0;
	*(void **)&ask = dlsym(RTLD_DEFAULT, "cuPointerGetAttribute");
	void *driver = ask ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (driver) {
		*(void **)&ask = dlsym(driver, "cuPointerGetAttribute");
		dlclose(driver);
	}
	return p && (p == MPI_IN_PLACE || !ask || ask(&type, MEMORY_TYPE, (uintptr_t)p) || type != ON_DEVICE);
}

/* A call as the way that it goes depends on it. */
typedef struct errand {
	const char *function;
	gradcomp_policy_operation operation;
	uint64_t numbers, room; /* room: of workspace that it needs */
	vote can;               /* as far as this rank is concerned */
	const void *in, *out;
} errand;

/* How a call goes: the coder for it, or NULL for MPI's own way or, with *rc set, none. *all, if not NULL: what the ranks
 * can. */
static gradcomp_coder *way_of(communicator *c, const errand *e, vote *all, int *rc)
{
	gradcomp_error err = {0};
	vote most = CANNOT;
	int entry = entry_for(c, e->operation, e->numbers);
	if (entry < 0)
		return NULL;
	bool here = is_here(e->in) && is_here(e->out) && reserve(c, e->room);
	gradcomp_status st = ask_all(c, here ? e->can : CANNOT, &most, &err);
	if (all)
		*all = most;
	if (!st && most == CANNOT)
		return NULL;
	if (!st)
		st = coder_of(c, entry, &err);
	if (st)
		*rc = fail(c->comm, e->function, c->name, &err);
	return st ? NULL : c->coders[entry];
}

static bool is_float(MPI_Datatype t)
{
	int size = 0;
	return t != mpi.the_datatype_null &&
	       (t == mpi.the_float ||
	        ((t == mpi.the_real || t == mpi.the_real4) && !mpi.Type_size(t, &size) && size == sizeof(float)));
}

static bool is_named(int combiner)
{
	return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
	       combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
}

/* Says whether a type is made of floats alone. */
static bool has_floats_alone(MPI_Datatype t)
{
	int nints, naddresses, ntypes, combiner;
	if (t == mpi.the_datatype_null || is_float(t) ||
	    mpi.Type_get_envelope(t, &nints, &naddresses, &ntypes, &combiner) || is_named(combiner))
		return is_float(t);
	int *ints = malloc(((size_t)nints + 1) * sizeof *ints);
	MPI_Aint *addresses = malloc(((size_t)naddresses + 1) * sizeof *addresses);
	MPI_Datatype *types = malloc(((size_t)ntypes + 1) * sizeof *types);
	if (!ints || !addresses || !types)
		give_up("no memory for what a type is made of");
	bool yes = ntypes > 0 && !mpi.Type_get_contents(t, nints, naddresses, ntypes, ints, addresses, types);
	for (int i = 0, known = yes ? ntypes : 0; i < known; i++) {
		int inner[3];
		yes = yes && has_floats_alone(types[i]);
		if (!mpi.Type_get_envelope(types[i], &inner[0], &inner[1], &inner[2], &combiner) && !is_named(combiner))
			mpi.Type_free(&types[i]);
	}
	free(ints);
	free(addresses);
	free(types);
	return yes;
}

static uint64_t begin_of(const uint64_t *counts, int rank)
{
	uint64_t begin = 0;
	for (int r = 0; r < rank; r++)
		begin += counts[r];
	return begin;
}

/* Waits for requests, all of them, and returns the first failure. NULLs are fine. */
static gradcomp_status finish(gradcomp_coder_request **requests, int n, gradcomp_status st, gradcomp_error *err)
{
	gradcomp_error later;
	for (int i = 0; i < n; i++) {
		gradcomp_status ended = pmpi.call.coder_wait(requests[i], st ? &later : err);
		st = st ? st : ended;
	}
	return st;
}

/* Starts x = sum over ranks of x: each rank sums a part, and gathers the others'. */
static gradcomp_status start_allreduce(communicator *c, gradcomp_coder *coder, float *x, uint64_t n,
                                       gradcomp_coder_request *requests[2], gradcomp_error *err)
{
	uint64_t P = (uint64_t)c->nranks;
	for (uint64_t r = 0; r < P; r++)
		c->counts[r] = n / P + (r < n % P);
	float *own = x + begin_of(c->counts, c->rank);
	gradcomp_status st = pmpi.call.coder_reduce_scatter_start(coder, x, own, c->counts, GRADCOMP_F32, 1,
	                                                          GRADCOMP_CODER_NO_SLOT, &requests[0], err);
	return st ? st : pmpi.call.coder_all_gather_start(coder, own, x, c->counts, GRADCOMP_F32, &requests[1], err);
}

/* out = sum over ranks of their block of this rank in `in`, blocks of c->counts numbers. In place `out` is `in`: then
 * there is no workspace for pieces, and as MPI lets some ranks be in place and others not, none has any. */
static gradcomp_status reduce_scatter(communicator *c, gradcomp_coder *coder, const float *in, float *out, vote all,
                                      gradcomp_error *err)
{
	uint64_t total = begin_of(c->counts, c->nranks), begin = begin_of(c->counts, c->rank);
	uint64_t n = all == IN_ONE_PIECE ? 1 : total / PIECE_NUMBERS < PIECES ? total / PIECE_NUMBERS + 1 : PIECES;
	gradcomp_coder_request *requests[PIECES] = {NULL};
	gradcomp_status st = GRADCOMP_OK;
	float *work = c->work;
	if (in == out) {
		st = pmpi.call.coder_reduce_scatter_start(coder, out, out + begin, c->counts, GRADCOMP_F32, 1,
		                                          GRADCOMP_CODER_NO_SLOT, requests, err);
		st = finish(requests, 1, st, err);
		memmove(out, out + begin, c->counts[c->rank] * sizeof *out);
		return st;
	}
	for (uint64_t k = 0; !st && k < n; k++) {
		float *piece = work;
		const float *block = in;
		for (int r = 0; r < c->nranks; block += c->counts[r++]) {
			uint64_t from = c->counts[r] * k / n;
			c->part[r] = c->counts[r] * (k + 1) / n - from;
			memcpy(work, block + from, c->part[r] * sizeof *work);
			work += c->part[r];
		}
		st = pmpi.call.coder_reduce_scatter_start(coder, piece, out + c->counts[c->rank] * k / n, c->part,
		                                          GRADCOMP_F32, 1, GRADCOMP_CODER_NO_SLOT, &requests[k], err);
	}
	return finish(requests, (int)n, st, err);
}

EXPORT int MPI_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm)
{
	ready();
	int rc = MPI_SUCCESS;
	communicator *c =
		pmpi.job && count > 0 && op == mpi.the_op_sum && is_float(datatype) ? made_of(comm, &rc) : NULL;
	const errand e = {.function = "MPI_Allreduce",
	                  .operation = GRADCOMP_POLICY_ALL_REDUCE,
	                  .numbers = (uint64_t)count,
	                  .can = CAN,
	                  .in = sendbuf,
	                  .out = recvbuf};
	gradcomp_coder *coder = c ? way_of(c, &e, NULL, &rc) : NULL;
	if (rc)
		return rc;
	if (!coder)
		return mpi.Allreduce(sendbuf, recvbuf, count, datatype, op, comm);
	gradcomp_coder_request *requests[2] = {NULL};
	gradcomp_error err = {0};
	if (sendbuf != MPI_IN_PLACE)
		memcpy(recvbuf, sendbuf, (size_t)count * sizeof(float));
	gradcomp_status st = start_allreduce(c, coder, recvbuf, (uint64_t)count, requests, &err);
	st = finish(requests, 2, st, &err);
	return st ? fail(comm, "MPI_Allreduce", c->name, &err) : MPI_SUCCESS;
}

EXPORT int MPI_Allgather(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                         MPI_Datatype recvtype, MPI_Comm comm)
{
	ready();
	int rc = MPI_SUCCESS, size = 0;
	/* Ranks may name the same floats by other types, and then all go MPI's way. */
	bool floats =
		pmpi.job && recvcount > 0 && has_floats_alone(recvtype) && !mpi.Type_size(recvtype, &size) && size;
	communicator *c = floats ? made_of(comm, &rc) : NULL;
	gradcomp_coder *coder = NULL;
	if (c) {
		const errand e = {.function = "MPI_Allgather",
		                  .operation = GRADCOMP_POLICY_ALL_GATHER,
		                  .numbers = (uint64_t)recvcount * (uint64_t)size / sizeof(float) * (uint64_t)c->nranks,
		                  .can = is_float(recvtype) && (sendbuf == MPI_IN_PLACE ||
		                                                (is_float(sendtype) && sendcount == recvcount))
		                                 ? CAN
		                                 : CANNOT,
		                  .in = sendbuf,
		                  .out = recvbuf};
		coder = way_of(c, &e, NULL, &rc);
	}
	if (rc)
		return rc;
	if (!coder)
		return mpi.Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
	gradcomp_error err = {0};
	float *out = recvbuf;
	for (int r = 0; r < c->nranks; r++)
		c->counts[r] = (uint64_t)recvcount;
	const void *own = sendbuf == MPI_IN_PLACE ? out + (size_t)c->rank * (size_t)recvcount : sendbuf;
	return pmpi.call.coder_all_gather(coder, own, out, c->counts, GRADCOMP_F32, &err)
	               ? fail(comm, "MPI_Allgather", c->name, &err)
	               : MPI_SUCCESS;
}

/* A reduce-scatter whose blocks are in c->counts; *coded: it was not MPI's matter. */
static int scatter(communicator *c, const char *function, const void *sendbuf, void *recvbuf, bool *coded)
{
	uint64_t total = begin_of(c->counts, c->nranks);
	int rc = MPI_SUCCESS;
	gradcomp_error err = {0};
	const errand e = {.function = function,
	                  .operation = GRADCOMP_POLICY_REDUCE_SCATTER,
	                  .numbers = total,
	                  .room = sendbuf == MPI_IN_PLACE ? 0 : total,
	                  .can = sendbuf == MPI_IN_PLACE ? IN_ONE_PIECE : CAN,
	                  .in = sendbuf,
	                  .out = c->counts[c->rank] ? recvbuf : sendbuf};
	vote all = CANNOT;
	gradcomp_coder *coder = total ? way_of(c, &e, &all, &rc) : NULL;
	*coded = coder || rc;
	if (!coder)
		return rc;
	gradcomp_status st = reduce_scatter(c, coder, sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf, recvbuf, all, &err);
	return st ? fail(c->comm, function, c->name, &err) : MPI_SUCCESS;
}

EXPORT int MPI_Reduce_scatter(const void *sendbuf, void *recvbuf, const int recvcounts[], MPI_Datatype datatype,
                              MPI_Op op, MPI_Comm comm)
{
	ready();
	int rc = MPI_SUCCESS;
	bool coded = false, valid = true;
	communicator *c =
		pmpi.job && recvcounts && op == mpi.the_op_sum && is_float(datatype) ? made_of(comm, &rc) : NULL;
	for (int r = 0; c && r < c->nranks; r++) {
		valid &= recvcounts[r] >= 0;
		c->counts[r] = (uint64_t)recvcounts[r];
	}
	if (c && valid)
		rc = scatter(c, "MPI_Reduce_scatter", sendbuf, recvbuf, &coded);
	return rc || coded ? rc : mpi.Reduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm);
}

EXPORT int MPI_Reduce_scatter_block(const void *sendbuf, void *recvbuf, int recvcount, MPI_Datatype datatype, MPI_Op op,
                                    MPI_Comm comm)
{
	ready();
	int rc = MPI_SUCCESS;
	bool coded = false;
	communicator *c =
		pmpi.job && recvcount > 0 && op == mpi.the_op_sum && is_float(datatype) ? made_of(comm, &rc) : NULL;
	for (int r = 0; c && r < c->nranks; r++)
		c->counts[r] = (uint64_t)recvcount;
	if (c)
		rc = scatter(c, "MPI_Reduce_scatter_block", sendbuf, recvbuf, &coded);
	return rc || coded ? rc : mpi.Reduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm);
}

/* Copies numbers, of which MPI knows how to reach those that are in a GPU's memory. Returns MPI's code. */
static int copy_numbers(const void *from, void *to, int count)
{
	if (!is_here(from) || !is_here(to))
		return mpi.Sendrecv(from, count, mpi.the_float, 0, 0, to, count, mpi.the_float, 0, 0, pmpi.self,
		                    MPI_STATUS_IGNORE);
	memcpy(to, from, (size_t)count * sizeof(float));
	return MPI_SUCCESS;
}

/* An MPI_Iallreduce. The program waits for a generalized request, which a thread completes. */
typedef struct flight {
	communicator *c;
	void *out;
	int count;
	float *staged; /* in place of `out`, which is not in host memory; else NULL */
	gradcomp_coder_request *requests[2];
	gradcomp_status st; /* how it was started */
	gradcomp_error err;
	MPI_Request request;
	int code;
} flight;

static int flight_status(void *extra, MPI_Status *status)
{
	const flight *f = extra;
	mpi.Status_set_elements(status, mpi.the_byte, 0);
	mpi.Status_set_cancelled(status, 0);
	status->MPI_SOURCE = status->MPI_TAG = MPI_UNDEFINED;
	return f->code;
}

static int flight_free(void *extra)
{
	flight *f = extra;
	free(f->staged);
	free(f);
	return MPI_SUCCESS;
}

static int flight_cancel(void *extra, int complete)
{
	(void)extra, (void)complete;
	return MPI_SUCCESS;
}

static void *flight_end(void *arg)
{
	flight *f = arg;
	communicator *c = f->c;
	gradcomp_status st = finish(f->requests, 2, f->st, &f->err);
	if (st)
		f->code = fail(c->comm, "MPI_Iallreduce", c->name, &f->err);
	else if (f->staged)
		f->code = copy_numbers(f->staged, f->out, f->count);
	/* Then the flight may be gone. */
	mpi.Grequest_complete(f->request);
	pthread_mutex_lock(&pmpi.lock);
	c->flights--;
	pthread_cond_broadcast(&pmpi.landed);
	pthread_mutex_unlock(&pmpi.lock);
	return NULL;
}

/* Waits until no call is under way on a communicator. Not within a callback of MPI, whose locks the thread needs. */
static void settle(MPI_Comm comm)
{
	communicator *c;
	int known = 0;
	if (!pmpi.job || comm == mpi.the_comm_null || mpi.Comm_get_attr(comm, pmpi.keyval, &c, &known) || !known)
		return;
	pthread_mutex_lock(&pmpi.lock);
	while (c->flights)
		pthread_cond_wait(&pmpi.landed, &pmpi.lock);
	pthread_mutex_unlock(&pmpi.lock);
}

/* The coder for a call that may not wait: what all ranks have made before, in a call that did. */
static gradcomp_coder *ready_coder(MPI_Comm comm, uint64_t numbers, communicator **c)
{
	int known = 0;
	if (comm == mpi.the_comm_null || mpi.Comm_get_attr(comm, pmpi.keyval, c, &known) || !known || !(*c)->group)
		return NULL;
	int entry = entry_for(*c, GRADCOMP_POLICY_ALL_REDUCE, numbers);
	return entry < 0 ? NULL : (*c)->coders[entry];
}

EXPORT int MPI_Iallreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
                          MPI_Comm comm, MPI_Request *request)
{
	ready();
	communicator *c = NULL;
	pthread_t thread;
	bool floats = pmpi.job && pmpi.threads && count > 0 && op == mpi.the_op_sum && is_float(datatype);
	gradcomp_coder *coder = floats ? ready_coder(comm, (uint64_t)count, &c) : NULL;
	flight *f = coder ? calloc(1, sizeof *f) : NULL;
	if (!coder)
		return mpi.Iallreduce(sendbuf, recvbuf, count, datatype, op, comm, request);
	/* From here on the others count on this rank. */
	if (f && !is_here(recvbuf))
		f->staged = malloc((size_t)count * sizeof(float));
	if (!f || (!f->staged && !is_here(recvbuf)))
		give_up("no memory for an MPI_Iallreduce");
	f->c = c;
	f->out = recvbuf;
	f->count = count;
	if (mpi.Grequest_start(flight_status, flight_free, flight_cancel, f, &f->request))
		give_up("MPI_Grequest_start has failed");
	*request = f->request;
	float *x = f->staged ? f->staged : recvbuf;
	const void *in = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
	if (in != x && copy_numbers(in, x, count))
		give_up("a buffer of an MPI_Iallreduce cannot be read");
	f->st = start_allreduce(c, coder, x, (uint64_t)count, f->requests, &f->err);
	pthread_mutex_lock(&pmpi.lock);
	c->flights++;
	pthread_mutex_unlock(&pmpi.lock);
	/* Without a thread it ends here and now. */
	if (pthread_create(&thread, NULL, flight_end, f))
		flight_end(f);
	else
		pthread_detach(thread);
	return MPI_SUCCESS;
}

EXPORT int MPI_Init(int *argc, char ***argv)
{
	ready();
	int rc = mpi.Init(argc, argv);
	if (!rc)
		begin(MPI_THREAD_SINGLE);
	return rc;
}

EXPORT int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	ready();
	int rc = mpi.Init_thread(argc, argv, required, provided);
	if (!rc)
		begin(*provided);
	return rc;
}

EXPORT int MPI_Comm_free(MPI_Comm *comm)
{
	ready();
	if (comm)
		settle(*comm);
	return mpi.Comm_free(comm);
}

EXPORT int MPI_Comm_disconnect(MPI_Comm *comm)
{
	ready();
	if (comm)
		settle(*comm);
	return mpi.Comm_disconnect(comm);
}

EXPORT int MPI_Finalize(void)
{
	ready();
	for (communicator *c = pmpi.first; c; c = c->next)
		settle(c->comm);
	end();
	return mpi.Finalize();
}
