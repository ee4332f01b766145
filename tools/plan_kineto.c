/* Makes a model of what export_chrome_trace() of torch.profiler writes: Chrome's trace format with the events of
 * Kineto, schemaVersion 1.
 *
 * Each event torch::autograd::AccumulateGrad is a parameter's gradient: its end says when it is there, its "Input Dims"
 * of what shape it is. The node of autograd that made it ran before, on the same thread. A node has the "Sequence
 * number" of the operator of the forward pass that it belongs to: of the operators with that number it is the last one
 * to begin. From there to where the next parameter is used goes the parameter's part of the forward pass. Work that is
 * launched on a device is over when its kernels are, and a launch and its kernels have one "correlation".
 *
 * A file may have gigabytes, so events are read one by one, and a few numbers of some are kept. */
#ifdef HAVE_JANSSON
#include "tools/plan_import.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fit.h"
#include "config/record_io.h"
#include "gradcomp/stage.h"

enum { EVENT_MOST = 1 << 20, EVENTS_MOST = 1 << 24, WORD = 64, NAME = 200, KINDS = 16 };

/* Where events begin and end together, the first of these is around the others. */
typedef enum event_kind {
	MODULE,   /* a module of torch.nn is called */
	ENGINE,   /* autograd's engine runs a node */
	BACKWARD, /* the node itself */
	GRADIENT, /* a gradient is kept, or added to what there is */
	FORWARD,  /* an operator that autograd has numbered */
	READING,  /* the data loader gives a batch */
	UPDATE,   /* the optimizer's step */
	CLEARING  /* its zero_grad */
} event_kind;

typedef struct event {
	double start, end; /* microseconds since the first event of the file */
	int64_t sequence;  /* -1: has none; of a module the place of the one around it */
	uint64_t thread;
	uint32_t at; /* where its dimensions are, or its module's name, from 1; 0: is in no module */
	uint8_t kind, ndim;
	bool inside; /* a node, in which operators may run again */
} event;

typedef struct op {
	double start, marker; /* when it began; when the program last read, updated or cleared before that */
	int64_t sequence;
	uint32_t module;
} op;

/* A launch began at `at`, and its kernels were over at `over`; of a kernel both are its end. */
typedef struct launch {
	double at, over;
	int64_t correlation;
} launch;

/* Forward operators and the gradients that came after them, before the next forward operator. */
typedef struct pass {
	size_t forward, nforwards, gradient, ngradients; /* in the lists */
	double backward;                                 /* when it began */
	int64_t lowest;                                  /* sequence number of its nodes */
	double reading, update;
} pass;

typedef struct parameter {
	char *name;
	uint64_t dims[PLAN_DIMS];
	int ndim;
	bool taken;
} parameter;

typedef struct list {
	void *items;
	size_t n, room;
} list;

typedef struct trace {
	plan_import *to;
	char shown[300], names[300]; /* the paths, for messages */
	FILE *f;
	uint64_t at;   /* bytes that were read */
	uint64_t left; /* that one event may still have */
	double zero;
	bool version;
	size_t kernels_seen;
	list events, dims, modules, kernels, launches, operators, gradients, passes, parameters;
} trace;

/* Returns room for one more, which is zero; NULL after an error. */
static void *append(const trace *t, list *l, size_t size)
{
	if (l->n == EVENTS_MOST) {
		error_set(t->to->err, GRADCOMP_ERR_RANGE,
		          "%s: there are more than %d events of one kind: profile fewer steps, "
		          "as with schedule=torch.profiler.schedule(wait=1, warmup=1, active=5)",
		          t->shown, EVENTS_MOST);
		return NULL;
	}
	if (l->n == l->room) {
		const size_t room = l->room ? 2 * l->room : 256;
		void *more = reallocarray(l->items, room, size);

		if (!more) {
			error_set(t->to->err, GRADCOMP_ERR_NOMEM, "%s: no memory for its events", t->shown);
			return NULL;
		}
		l->items = more;
		l->room = room;
	}
	return memset((char *)l->items + size * l->n++, 0, size);
}

static gradcomp_status bad(const trace *t, const char *why)
{
	return error_set(t->to->err, GRADCOMP_ERR_INVALID, "%s: %s", t->shown, why);
}

/* The file ends too early, or is not what it should be where it was read last. */
static gradcomp_status broken(const trace *t, const char *why)
{
	char text[200];
	if (ferror(t->f))
		return error_errno(t->to->err, GRADCOMP_ERR_IO, "%s", t->shown);
	if (feof(t->f))
		return error_set(t->to->err, GRADCOMP_ERR_INVALID,
		                 "%s: the trace is cut short: it ends after %" PRIu64 " bytes in the middle", t->shown,
		                 t->at);
	return error_set(t->to->err, GRADCOMP_ERR_INVALID, "%s: byte %" PRIu64 ": %s", t->shown, t->at,
	                 gradcomp_printable(why, text, sizeof text));
}

/* Below are the functions that read the file. */

static int get(trace *t)
{
	const int c = getc_unlocked(t->f);
	t->at += c != EOF;
	return c;
}

static void unget(trace *t, int c)
{
	if (c != EOF) {
		ungetc(c, t->f);
		t->at--;
	}
}

/* Returns the next character that is no blank. */
static int next(trace *t)
{
	int c;
	do
		c = get(t);
	while (c == ' ' || c == '\t' || c == '\n' || c == '\r');
	return c;
}

/* Reads a string, behind its first quote; `out` gets its beginning. Returns false where the file ends. */
static bool read_string(trace *t, char out[WORD])
{
	size_t n = 0;
	for (;;) {
		int c = get(t);

		if (c == '"') {
			out[n] = '\0';
			return true;
		}
		if (c == '\\')
			c = get(t);
		if (c == EOF)
			return false;
		if (n + 1 < WORD)
			out[n++] = (char)c;
	}
}

/* Passes over a value that begins with c, which no event is in; `out` gets the beginning of a word or number. Returns
 * false where the file ends. */
static bool pass_over(trace *t, int c, char out[WORD])
{
	size_t depth = 0, n = 0;
	*out = '\0';
	for (; c != EOF; c = get(t)) {
		if (c == '"') {
			if (!read_string(t, out))
				return false;
		} else if (c == '{' || c == '[') {
			depth++;
		} else if (c == '}' || c == ']') {
			depth--;
		} else if (!depth) {
			for (; c != EOF && !strchr(",}] \t\r\n", c); c = get(t))
				if (n + 1 < WORD)
					out[n++] = (char)c;
			out[n] = '\0';
			unget(t, c);
			return c != EOF;
		}
		if (!depth)
			return true;
	}
	return false;
}

/* For jansson, which is not to read beyond the event. */
static size_t one_byte(void *out, size_t room, void *ctx)
{
	trace *t = ctx;
	const int c = t->left ? get(t) : EOF;
	(void)room;
	if (c == EOF)
		return 0;
	t->left--;
	*(char *)out = (char)c;
	return 1;
}

static double number(const json_t *e, const char *key)
{
	const json_t *n = json_object_get(e, key);
	return json_is_number(n) ? json_number_value(n) : NAN;
}

/* Returns a number that counts something; -1: there is none. */
static int64_t count_of(const json_t *args, const char *key)
{
	const json_t *n = json_object_get(args, key);
	return json_is_integer(n) && json_integer_value(n) >= 0 ? json_integer_value(n) : -1;
}

/* Returns a process or thread, which may be a number or a text, as a number. */
static uint64_t thread_of(const json_t *id)
{
	uint64_t hash = 14695981039346656037u;
	if (!json_is_string(id))
		return (uint64_t)json_integer_value(id);
	for (const char *c = json_string_value(id); *c; c++)
		hash = (hash ^ (unsigned char)*c) * 1099511628211u;
	return hash;
}

static bool begins(const char *text, const char *with)
{
	return !strncmp(text, with, strlen(with));
}

static bool ends(const char *text, const char *with)
{
	const size_t n = strlen(text), m = strlen(with);
	return n >= m && !strcmp(text + n - m, with);
}

/* Categories of events, as PyTorch since 1.12 and before that names them. */

static bool is_on_device(const char *category)
{
	static const char *const all[] = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(category, all[i]))
			return true;
	return false;
}

static bool is_launch(const char *category)
{
	return ends(category, "_runtime") || ends(category, "_driver") || !strcmp(category, "Runtime");
}

/* Returns an event_kind; -1 for what tells nothing. */
static int kind_of(const char *category, const char *name, int64_t sequence, int64_t forward_thread)
{
	static const struct {
		const char *name;
		event_kind kind;
	} names[] = {
		{"autograd::engine::evaluate_function: ", ENGINE},
		{"torch::autograd::AccumulateGrad", GRADIENT},
		{"struct torch::autograd::AccumulateGrad", GRADIENT}, /* on Windows */
		{"nn.Module: ", MODULE},
		{"enumerate(DataLoader)#", READING},
		{"Optimizer.step#", UPDATE},
		{"Optimizer.zero_grad#", CLEARING},
	};

	if (begins(category, "gpu_"))
		return -1;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (begins(name, names[i].name))
			return (int)names[i].kind;
	if (sequence < 0 || (strcmp(category, "cpu_op") && strcmp(category, "Operator")))
		return -1;
	return forward_thread > 0 ? BACKWARD : FORWARD;
}

/* Takes a gradient's shape. *there: the gradient is; the loss may not depend on the parameter. */
static gradcomp_status take_shape(trace *t, const json_t *args, event *g, bool *there)
{
	const json_t *dims = json_array_get(json_object_get(args, "Input Dims"), 0);
	const char *type = json_string_value(json_array_get(json_object_get(args, "Input type"), 0));
	*there = !type || *type;
	if (!*there)
		return GRADCOMP_OK;
	if (!json_is_array(dims))
		return bad(t, "its gradients have no shapes: profile with record_shapes=True");
	if (json_array_size(dims) > PLAN_DIMS)
		return bad(t, "a gradient has more than 8 dimensions");
	g->at = (uint32_t)t->dims.n;
	g->ndim = (uint8_t)json_array_size(dims);
	for (uint32_t d = 0; d < g->ndim; d++) {
		const json_t *n = json_array_get(dims, d);
		uint64_t *to;

		if (!json_is_integer(n) || json_integer_value(n) < 0)
			return bad(t, "a gradient has a dimension that is no number from 0 on");
		to = append(t, &t->dims, sizeof *to);
		if (!to)
			return t->to->err->status;
		*to = (uint64_t)json_integer_value(n);
	}
	return GRADCOMP_OK;
}

static gradcomp_status take_module(trace *t, const char *name, event *m)
{
	char **to = append(t, &t->modules, sizeof *to);
	if (!to)
		return t->to->err->status;
	*to = strdup(name);
	if (!*to)
		return error_set(t->to->err, GRADCOMP_ERR_NOMEM, "%s: no memory for a name", t->shown);
	m->at = (uint32_t)t->modules.n;
	return GRADCOMP_OK;
}

static gradcomp_status take_launch(trace *t, list *to, const char *name, double at, const json_t *args)
{
	const int64_t correlation = count_of(args, "correlation");
	launch *l;
	/* In these other ranks are waited for; they are no work of this one. */
	if (correlation < 0 || strcasestr(name, "nccl"))
		return GRADCOMP_OK;
	l = append(t, to, sizeof *l);
	if (!l)
		return t->to->err->status;
	*l = (launch){at, at, correlation};
	return GRADCOMP_OK;
}

static gradcomp_status take_event(trace *t, const json_t *e)
{
	const char *phase = json_string_value(json_object_get(e, "ph")),
		   *category = json_string_value(json_object_get(e, "cat")),
		   *name = json_string_value(json_object_get(e, "name"));
	const json_t *args = json_object_get(e, "args");
	const double ts = number(e, "ts"), duration = number(e, "dur");
	event x = {.sequence = count_of(args, "Sequence number")}, *to;
	bool device, there = true;
	int kind = -1;
	char shown[100];
	gradcomp_status st = GRADCOMP_OK;
	if (!phase || strcmp(phase, "X") || !category || !name)
		return GRADCOMP_OK;
	device = is_on_device(category);
	t->kernels_seen += device;
	if (!device && !is_launch(category)) {
		kind = kind_of(category, name, x.sequence, count_of(args, "Fwd thread id"));
		if (kind < 0)
			return GRADCOMP_OK;
	}
	if (!(ts >= 0 && ts < 1e18) || !(duration >= 0 && duration < 1e12))
		return error_set(t->to->err, GRADCOMP_ERR_INVALID,
		                 "%s: event '%s' begins at %g and takes %g microseconds; both must be there, and from "
		                 "0 on",
		                 t->shown, gradcomp_printable(name, shown, sizeof shown), ts, duration);
	if (isnan(t->zero))
		t->zero = ts;
	x.start = ts - t->zero;
	x.end = x.start + duration;
	if (kind < 0)
		return take_launch(t, device ? &t->kernels : &t->launches, name, device ? x.end : x.start, args);
	x.kind = (uint8_t)kind;
	x.thread = thread_of(json_object_get(e, "pid")) * 1000003u + thread_of(json_object_get(e, "tid"));
	if (kind == GRADIENT)
		st = take_shape(t, args, &x, &there);
	else if (kind == MODULE)
		st = take_module(t, name + strlen("nn.Module: "), &x);
	if (st || !there)
		return st;
	to = append(t, &t->events, sizeof *to);
	if (!to)
		return t->to->err->status;
	*to = x;
	return GRADCOMP_OK;
}

static gradcomp_status read_events(trace *t)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int c = next(t); c != ']' && !st; c = next(t)) {
		json_error_t why;
		json_t *e;

		if (c == ',')
			continue;
		unget(t, c);
		t->left = EVENT_MOST;
		e = json_load_callback(one_byte, t, JSON_DISABLE_EOF_CHECK, &why);
		if (json_is_object(e))
			st = take_event(t, e);
		else if (e)
			st = broken(t, "this is no event");
		else
			st = broken(t, t->left ? why.text : "an event has more than a MiB");
		json_decref(e);
	}
	return st;
}

static gradcomp_status read_trace(trace *t)
{
	char key[WORD], value[WORD];
	gradcomp_status st = GRADCOMP_OK;
	bool events = false;
	int c = next(t);
	if (c == '[')
		return bad(
			t,
			"this is a list, as PyTorch writes it where it was built without Kineto: it tells no shapes");
	if (c != '{')
		return bad(t, "this is no trace of torch.profiler, which begins with '{'");
	for (c = next(t); c != '}' && !st; c = next(t)) {
		if (c == ',')
			continue;
		if (c != '"' || !read_string(t, key) || next(t) != ':')
			return broken(t, "this is no JSON");
		c = next(t);
		if (c == '[' && !strcmp(key, "traceEvents")) {
			events = true;
			st = read_events(t);
			continue;
		}
		if (c == ',' || c == '}' || c == ']' || !pass_over(t, c, value))
			return broken(t, "this is no JSON");
		if (strcmp(key, "schemaVersion"))
			continue;
		t->version = true;
		if (strcmp(value, "1"))
			return error_set(t->to->err, GRADCOMP_ERR_UNSUPPORTED,
			                 "%s: its schemaVersion is '%s'; what is read is 1, of PyTorch since 1.8",
			                 t->shown, gradcomp_printable(value, key, sizeof key));
	}
	if (!st && (!events || !t->version))
		st = bad(t, "this is no trace of torch.profiler: it has no traceEvents, or no schemaVersion");
	return st;
}

static gradcomp_status open_trace(trace *t)
{
	const int fd = open(t->to->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	unsigned char head[2] = {0};
	gradcomp_status st = GRADCOMP_OK;
	struct stat s;
	if (fd < 0)
		return error_errno(t->to->err, errno == ENOENT ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_IO, "%s",
		                   t->shown);
	if (fstat(fd, &s) || !S_ISREG(s.st_mode))
		st = bad(t, "this is no file");
	else if (pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head && head[0] == 0x1f && head[1] == 0x8b)
		st = bad(t, "this is compressed: unpack it first, with gunzip");
	else if (!(t->f = fdopen(fd, "r")))
		st = error_errno(t->to->err, GRADCOMP_ERR_IO, "%s", t->shown);
	if (!t->f)
		close(fd);
	return st;
}

/* Below are the functions that see what belongs together. */

static int by_start(const void *a, const void *b)
{
	const event *x = a, *y = b;
	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	if (x->end != y->end)
		return x->end > y->end ? -1 : 1;
	return (int)x->kind - (int)y->kind;
}

static int by_thread(const void *a, const void *b)
{
	const event *x = a, *y = b;
	if (x->thread != y->thread)
		return x->thread < y->thread ? -1 : 1;
	return by_start(a, b);
}

static int by_correlation(const void *a, const void *b)
{
	const launch *x = a, *y = b;
	return (x->correlation > y->correlation) - (x->correlation < y->correlation);
}

static int by_time(const void *a, const void *b)
{
	const launch *x = a, *y = b;
	return (x->at > y->at) - (x->at < y->at);
}

/* Leaves launches that have kernels, in their order, with the time when these and all that were launched before are
 * over. */
static gradcomp_status link_kernels(trace *t)
{
	launch *l = t->launches.items;
	const launch *k = t->kernels.items;
	int64_t correlation = -1;
	double last = -INFINITY;
	size_t n = 0;
	if (t->launches.n)
		qsort(l, t->launches.n, sizeof *l, by_correlation);
	if (t->kernels.n)
		qsort(t->kernels.items, t->kernels.n, sizeof *k, by_correlation);
	for (size_t i = 0, j = 0; i < t->launches.n; i++) {
		if (l[i].correlation != correlation) {
			correlation = l[i].correlation;
			last = -INFINITY;
			for (; j < t->kernels.n && k[j].correlation <= correlation; j++)
				if (k[j].correlation == correlation)
					last = fmax(last, k[j].over);
		}
		if (isfinite(last))
			l[n++] = (launch){l[i].at, last, correlation};
	}
	t->launches.n = n;
	if (n)
		qsort(l, n, sizeof *l, by_time);
	for (size_t i = 1; i < n; i++)
		l[i].over = fmax(l[i].over, l[i - 1].over);
	if (t->kernels_seen && !n)
		return bad(t, "none of its kernels has the correlation of a launch: profile with "
		              "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]");
	return GRADCOMP_OK;
}

/* Returns when what was launched until then is over: where nothing is launched, then. */
static double over(const trace *t, double until)
{
	const launch *l = t->launches.items;
	size_t low = 0, high = t->launches.n;
	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (l[middle].at <= until)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? fmax(until, l[low - 1].over) : until;
}

/* Says of each gradient which node made it, and of each operator in which module it is. Leaves, in the order of time,
 * all but modules, and of operators those outside nodes, of the thread that has most of them. */
static void link_events(trace *t)
{
	event *e = t->events.items;
	int64_t module = -1, outer = -1, made = -1;
	double engine = -INFINITY;
	uint64_t thread = 0;
	size_t kept = 0, forwards = 0, most = 0;
	if (t->events.n)
		qsort(e, t->events.n, sizeof *e, by_thread);
	for (size_t i = 0; i < t->events.n; i++) {
		event *x = &e[i];

		if (i && x->thread != x[-1].thread) {
			module = outer = made = -1;
			engine = -INFINITY;
			forwards = 0;
		}
		while (module >= 0 && e[module].end <= x->start)
			module = e[module].sequence;
		x->inside = x->start < engine;
		switch ((event_kind)x->kind) {
		case MODULE:
			x->sequence = module;
			module = (int64_t)i;
			break;
		case ENGINE:
			if (!x->inside) {
				engine = x->end;
				outer = x->sequence;
			}
			made = x->sequence >= 0 ? x->sequence : made;
			break;
		case BACKWARD:
			if (x->inside && outer < 0)
				outer = x->sequence;
			made = x->sequence;
			break;
		case GRADIENT:
			/* The operators of a checkpoint have run again: its own node has the forward pass's number. */
			x->sequence = x->inside && outer >= 0 ? outer : made;
			break;
		case FORWARD:
			x->at = module >= 0 ? e[module].at : 0;
			forwards += !x->inside;
			if (forwards > most) {
				most = forwards;
				thread = x->thread;
			}
			break;
		case READING:
		case UPDATE:
		case CLEARING:
			break;
		}
	}
	for (size_t i = 0; i < t->events.n; i++)
		if (e[i].kind != MODULE && (e[i].kind != FORWARD || (!e[i].inside && e[i].thread == thread)))
			e[kept++] = e[i];
	t->events.n = kept;
	if (kept)
		qsort(e, kept, sizeof *e, by_start);
}

static pass no_pass(const trace *t)
{
	return (pass){.forward = t->operators.n, .gradient = t->gradients.n, .backward = INFINITY, .lowest = INT64_MAX};
}

static bool end_pass(trace *t, pass *p)
{
	pass *to = append(t, &t->passes, sizeof *to);
	if (!to)
		return false;
	*to = *p;
	*p = no_pass(t);
	return true;
}

static gradcomp_status find_passes(trace *t)
{
	const event *e = t->events.items;
	pass p = no_pass(t), *of;
	double reading = 0, marker = -INFINITY;
	for (size_t i = 0; i < t->events.n; i++) {
		const event *x = &e[i];
		op *o;
		event *g;

		switch ((event_kind)x->kind) {
		case FORWARD:
			if (p.ngradients && !end_pass(t, &p))
				return t->to->err->status;
			o = append(t, &t->operators, sizeof *o);
			if (!o)
				return t->to->err->status;
			*o = (op){x->start, marker, x->sequence, x->at};
			p.nforwards++;
			p.backward = INFINITY;
			break;
		case GRADIENT:
			g = append(t, &t->gradients, sizeof *g);
			if (!g)
				return t->to->err->status;
			*g = *x;
			p.ngradients++;
			p.backward = fmin(p.backward, x->start);
			p.reading += reading;
			reading = 0;
			break;
		case ENGINE:
		case BACKWARD:
			p.backward = fmin(p.backward, x->start);
			if (x->sequence >= 0 && x->sequence < p.lowest)
				p.lowest = x->sequence;
			break;
		case READING:
			/* One that is inside another one, or inside an update, counts once. */
			if (x->start >= marker)
				reading += x->end - x->start;
			marker = fmax(marker, x->end);
			break;
		case UPDATE:
			of = p.ngradients ? &p : t->passes.n ? (pass *)t->passes.items + t->passes.n - 1 : NULL;
			if (of && x->start >= marker)
				of->update += over(t, x->end) - over(t, x->start);
			marker = fmax(marker, x->end);
			break;
		case CLEARING:
			marker = fmax(marker, x->end);
			break;
		case MODULE:
			break;
		}
	}
	return p.ngradients && !end_pass(t, &p) ? t->to->err->status : GRADCOMP_OK;
}

/* Below are the functions that make the model. */

/* Returns the last operator of the pass with that number; NULL: there is none. */
static const op *operator_of(const trace *t, const pass *p, int64_t sequence)
{
	const op *o = t->operators.items;
	size_t low = p->forward, high = low + p->nforwards;
	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (o[middle].sequence <= sequence)
			low = middle + 1;
		else
			high = middle;
	}
	return sequence >= 0 && low > p->forward && o[low - 1].sequence == sequence ? &o[low - 1] : NULL;
}

static const event *gradients_of(const trace *t, const pass *p)
{
	return (const event *)t->gradients.items + p->gradient;
}

/* Returns true when something is known of the pass's forward part. */
static bool is_whole(const trace *t, const pass *p)
{
	for (size_t i = 0; i < p->ngradients; i++)
		if (operator_of(t, p, gradients_of(t, p)[i].sequence))
			return true;
	return false;
}

static bool is_alike(const trace *t, const pass *p, const pass *q)
{
	const uint64_t *dims = t->dims.items;
	if (p->ngradients != q->ngradients || !is_whole(t, q))
		return false;
	for (size_t i = 0; i < p->ngradients; i++) {
		const event *x = &gradients_of(t, p)[i], *y = &gradients_of(t, q)[i];

		if (x->ndim != y->ndim || (x->ndim && memcmp(dims + x->at, dims + y->at, x->ndim * sizeof *dims)))
			return false;
	}
	return true;
}

/* A gradient's parameter is used for the first time. */
typedef struct use {
	double at;
	size_t gradient;
} use;

/* Where parameters are used together, those are the earlier ones whose gradients come later. */
static int by_use(const void *a, const void *b)
{
	const use *x = a, *y = b;
	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return (x->gradient < y->gradient) - (x->gradient > y->gradient);
}

/* Returns when the forward pass began: with the operators in front of the first node, as far as nothing else was
 * between them. */
static double forward_start(const trace *t, const pass *p, double otherwise)
{
	const op *o = operator_of(t, p, p->lowest), *last = o;
	if (!o)
		return otherwise;
	while (o > (const op *)t->operators.items + p->forward && o[-1].sequence == p->lowest &&
	       o[-1].start >= last->marker)
		o--;
	return fmin(otherwise, over(t, o->start));
}

/* Seconds of each gradient's part of both passes, `stride` apart: forward, and behind all of those backward. `uses`
 * has room for all. */
static void pass_seconds(const trace *t, const pass *p, use *uses, double *forward, double *backward, size_t stride)
{
	const event *g = gradients_of(t, p);
	double before = over(t, p->backward), start;
	size_t n = 0;
	for (size_t i = 0; i < p->ngradients; i++) {
		const op *o = operator_of(t, p, g[i].sequence);
		const double ready = fmax(before, over(t, g[i].end));

		backward[i * stride] = (ready - before) * 1e-6;
		forward[i * stride] = 0;
		before = ready;
		if (o)
			uses[n++] = (use){over(t, o->start), i};
	}
	qsort(uses, n, sizeof *uses, by_use);
	start = forward_start(t, p, uses[0].at);
	for (size_t i = 0; i < n; i++) {
		const double end = i + 1 < n ? uses[i + 1].at : over(t, p->backward);

		forward[uses[i].gradient * stride] = fmax(0, end - start) * 1e-6;
		start = end;
	}
}

static void shape_text(const uint64_t *dims, int ndim, char out[NAME])
{
	size_t at = 0;
	snprintf(out, NAME, "scalar");
	for (int d = 0; d < ndim; d++)
		at += (size_t)snprintf(out + at, NAME - at, "%s%" PRIu64, d ? "x" : "", dims[d]);
}

/* Reads "64x3x7x7" or "scalar"; -1: it is neither. */
static int shape_of(const char *text, uint64_t dims[PLAN_DIMS])
{
	int n = 0;
	if (!strcmp(text, "scalar"))
		return 0;
	for (;; text++) {
		char *end;

		if (n == PLAN_DIMS || *text < '0' || *text > '9')
			return -1;
		errno = 0;
		dims[n++] = strtoull(text, &end, 10);
		if (errno || (*end && *end != 'x'))
			return -1;
		text = end;
		if (!*text)
			return n;
	}
}

/* Reads "NAME SHAPE" lines. */
static gradcomp_status read_names(trace *t, const char *path)
{
	FILE *f = fopen(path, "re");
	char *line = NULL, *w[2];
	size_t room = 0, at = 0;
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_printable(path, t->names, sizeof t->names);
	if (!f)
		return error_errno(t->to->err, errno == ENOENT ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_IO, "names %s",
		                   t->names);
	while (!st && getline(&line, &room, f) > 0) {
		parameter *p;
		int words;

		at++;
		line[strcspn(line, "\r\n")] = '\0';
		words = record_io_words(line, w, 2);
		if (!words)
			continue;
		p = append(t, &t->parameters, sizeof *p);
		if (!p)
			st = t->to->err->status;
		else if (words != 2 || (p->ndim = shape_of(w[1], p->dims)) < 0)
			st = error_set(t->to->err, GRADCOMP_ERR_INVALID,
			               "names %s:%zu: write NAME 64x3x7x7 (at most %d dimensions), or NAME scalar",
			               t->names, at, PLAN_DIMS);
		else if (!(p->name = strdup(w[0])))
			st = error_set(t->to->err, GRADCOMP_ERR_NOMEM, "names %s: no memory", t->names);
	}
	if (!st && ferror(f))
		st = error_errno(t->to->err, GRADCOMP_ERR_IO, "names %s", t->names);
	free(line);
	fclose(f);
	return st;
}

/* Finds the first parameter of that shape whose name was not given away; `from` goes up to where all were. */
static const char *name_of(trace *t, const uint64_t *dims, int ndim, size_t *from)
{
	parameter *p = t->parameters.items;
	while (*from < t->parameters.n && p[*from].taken)
		++*from;
	for (size_t i = *from; i < t->parameters.n; i++)
		if (!p[i].taken && p[i].ndim == ndim &&
		    (!ndim || !memcmp(p[i].dims, dims, (size_t)ndim * sizeof *dims))) {
			p[i].taken = true;
			return p[i].name;
		}
	return NULL;
}

/* Appends the parameters of the pass: the last gradient is the first one's. */
static gradcomp_status add_tensors(trace *t, const pass *p, const char *names, double *seconds, size_t each)
{
	const size_t n = p->ngradients;
	const uint64_t none = 0;
	size_t from = 0;
	gradcomp_status st = names ? read_names(t, names) : GRADCOMP_OK;
	for (size_t i = 0; i < n && !st; i++) {
		const size_t k = n - 1 - i;
		const event *g = &gradients_of(t, p)[k];
		const op *o = operator_of(t, p, g->sequence);
		const uint64_t *dims = g->ndim ? (const uint64_t *)t->dims.items + g->at : &none;
		char shape[NAME], made[2 * NAME];
		const char *name = made;

		shape_text(dims, g->ndim, shape);
		if (names)
			name = name_of(t, dims, g->ndim, &from);
		else if (o && o->module)
			snprintf(made, sizeof made, "%.80s.%s", ((char **)t->modules.items)[o->module - 1], shape);
		else
			snprintf(made, sizeof made, "%zu.%s", i, shape);
		st = !name ? error_set(t->to->err, GRADCOMP_ERR_INVALID,
		                       "names %s: no parameter of %s is left for gradient %zu of %zu of %s", t->names,
		                       shape, k + 1, n, t->shown)
		           : plan_import_tensor(t->to, name, dims, g->ndim, 0);
		if (!st) {
			model_tensor *last = &t->to->m->tensors[t->to->m->ntensors - 1];

			last->forward = fit_median(seconds + k * each, each);
			last->backward = fit_median(seconds + (n + k) * each, each);
		}
	}
	return st;
}

/* Returns the first of those passes, alike, that have most gradients in all: a program may train two models in turn, or
 * have a pass unlike others. NULL: no pass is whole. */
static const pass *usual_pass(const trace *t)
{
	const pass *p = t->passes.items, *kind[KINDS], *found = NULL;
	size_t gradients[KINDS] = {0}, n = 0, most = 0;
	for (size_t i = 0; i < t->passes.n; i++) {
		size_t k = 0;

		while (k < n && !is_alike(t, kind[k], &p[i]))
			k++;
		if (k == KINDS || (k == n && !is_whole(t, &p[i])))
			continue;
		if (k == n)
			kind[n++] = &p[i];
		gradients[k] += p[i].ngradients;
	}
	for (size_t k = 0; k < n; k++)
		if (gradients[k] > most) {
			most = gradients[k];
			found = kind[k];
		}
	return found;
}

/* Makes the model of the usual pass and of all that are like it. */
static gradcomp_status make_model(trace *t, const char *names)
{
	const pass *p = t->passes.items, *usual = usual_pass(t);
	double *seconds, *reading, *update;
	size_t each = 0, n, at = 0;
	use *uses;
	gradcomp_status st;
	if (!t->passes.n)
		return bad(t, "it has no backward pass: no torch::autograd::AccumulateGrad; profile whole steps of a "
		              "training, with ProfilerActivity.CPU");
	if (!usual)
		return bad(t, "no operator of a forward pass has the sequence number of one of a backward pass: "
		              "profile whole steps, both passes");
	n = usual->ngradients;
	for (size_t i = 0; i < t->passes.n; i++)
		each += is_alike(t, usual, &p[i]);
	seconds = calloc(2 * n, each * sizeof *seconds);
	reading = calloc(2 * each, sizeof *reading);
	uses = calloc(n, sizeof *uses);
	if (!seconds || !reading || !uses) {
		free(seconds);
		free(reading);
		free(uses);
		return error_set(t->to->err, GRADCOMP_ERR_NOMEM, "%s: no memory for %zu gradients", t->shown, n);
	}
	update = reading + each;
	for (size_t i = 0; i < t->passes.n; i++) {
		if (!is_alike(t, usual, &p[i]))
			continue;
		pass_seconds(t, &p[i], uses, seconds + at, seconds + n * each + at, each);
		reading[at] = p[i].reading * 1e-6;
		update[at++] = p[i].update * 1e-6;
	}
	t->to->m->io = fit_median(reading, each);
	t->to->m->update = fit_median(update, each);
	st = add_tensors(t, usual, names, seconds, each);
	if (!st && each < t->passes.n)
		fprintf(stderr, "gradcomp: %s: %zu of %zu backward passes count; the others are of other gradients\n",
		        t->shown, each, t->passes.n);
	free(seconds);
	free(reading);
	free(uses);
	return st;
}

static void clear(trace *t)
{
	list *all[] = {&t->events,    &t->dims,      &t->modules, &t->kernels,   &t->launches,
	               &t->operators, &t->gradients, &t->passes,  &t->parameters};
	for (size_t i = 0; i < t->modules.n; i++)
		free(((char **)t->modules.items)[i]);
	for (size_t i = 0; i < t->parameters.n; i++)
		free(((parameter *)t->parameters.items)[i].name);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]->items);
	if (t->f)
		fclose(t->f);
}

gradcomp_status plan_kineto(plan_import *to, const char *names)
{
	trace t = {.to = to, .zero = NAN};
	char path[280];
	gradcomp_status st;
	snprintf(t.shown, sizeof t.shown, "trace %s", gradcomp_printable(to->path, path, sizeof path));
	st = open_trace(&t);
	if (!st)
		st = read_trace(&t);
	if (!st)
		st = link_kernels(&t);
	if (!st) {
		link_events(&t);
		st = find_passes(&t);
	}
	if (!st)
		st = make_model(&t, names);
	clear(&t);
	return st;
}
#endif
