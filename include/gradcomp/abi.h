/* gradcomp/abi.h: what the application API and both plugin kinds share.
 *
 * Status codes, error text, element types, parameter tables, the table of
 * services a host hands to a plugin, and the rules by which all of these grow.
 *
 * How structures grow. A structure that crosses a shared-object boundary
 * starts with `struct_size`, set by its maker to sizeof. Fields are only
 * appended. A reader touches a field only when GRADCOMP_HAS() says the maker
 * knew it; a newer runtime therefore loads every older plugin: it copies the
 * descriptor, and what the plugin does not have is zero there. An older runtime
 * refuses a plugin whose `abi_version` is larger than its own and prints both
 * numbers, unless the plugin lists what it `needs` and the runtime has that.
 * Elements of arrays never change size. Most carry reserved words, which must be
 * zero; gradcomp_payload and gradcomp_tensor_desc do not, and what else belongs
 * to one of those goes into an array of its own, in the structure that comes with
 * the array (gradcomp_work, gradcomp_reducer_options).
 * The suffix of what a plugin exports, _v1, names the layout. A layout that does
 * not continue this one gets another suffix, and a runtime serves both.
 */
#ifndef GRADCOMP_ABI_H
#define GRADCOMP_ABI_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with each release that appends something or asks more of plugins.
 * 1: the first. 2: gradcomp_plugin_info.needs, gradcomp_compressor_v1.neutral and
 * .conserves. 3: another table of operators, in fields of its own of gradcomp_host and gradcomp_work; plugins of ABI 1
 * and 2 find theirs where it was, and a compressor among them works on the host. */
#define GRADCOMP_ABI_VERSION 3

#if defined(__GNUC__)
#define GRADCOMP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define GRADCOMP_EXPORT __attribute__((visibility("default")))
#else
#define GRADCOMP_PRINTF(fmt, first)
#define GRADCOMP_EXPORT
#endif

/* True when the structure *p, made by another build, is long enough to hold
 * `field`. */
#define GRADCOMP_HAS(p, field) ((p)->struct_size >= offsetof(__typeof__(*(p)), field) + sizeof((p)->field))

/* Every function that can fail returns one of these: 0, or a negative code.
 * Codes are never renumbered. */
typedef enum gradcomp_status {
	GRADCOMP_OK = 0,
	GRADCOMP_ERR_INVALID = -1,     /* an argument, option or value is wrong */
	GRADCOMP_ERR_NOMEM = -2,       /* memory could not be had */
	GRADCOMP_ERR_NOTFOUND = -3,    /* no such plugin, file, setting, tensor */
	GRADCOMP_ERR_UNSUPPORTED = -4, /* right in form, not served here */
	GRADCOMP_ERR_ABI = -5,         /* a plugin of another ABI, or no plugin */
	GRADCOMP_ERR_INSECURE = -6,    /* a file that others could have written */
	GRADCOMP_ERR_IO = -7,          /* a system call on a file or socket failed */
	GRADCOMP_ERR_AUTH = -8,        /* a peer without the job's secret */
	GRADCOMP_ERR_MISMATCH = -9,    /* ranks disagree on what they do */
	GRADCOMP_ERR_PEER = -10,       /* a rank died or left */
	GRADCOMP_ERR_TIMEOUT = -11,    /* a rank did not answer in time */
	GRADCOMP_ERR_STATE = -12,      /* called at the wrong moment */
	GRADCOMP_ERR_RANGE = -13,      /* larger than this method can count */
	GRADCOMP_ERR_INTERNAL = -14,   /* a promise of ours was broken: report it */
	GRADCOMP_ERR_PEER_LOST = -15,  /* a rank is lost; the others may go on: gradcomp_job_shrink() */
	GRADCOMP_ERR_OVERFLOW = -16    /* finite numbers have made one that is not; see compressor.h */
} gradcomp_status;

/* Says what went wrong, in words for the user. The caller owns it; every function that takes one accepts NULL.
 * `text` is always terminated, has no newline, and names the thing, the value found and what would be right. It is
 * meaningful only after a call that returned a negative status. */
typedef struct gradcomp_error {
	gradcomp_status status;
	char text[508];
} gradcomp_error;

/* Element types. Arithmetic on F16 and BF16 is done in float and rounded to
 * nearest even. */
typedef enum gradcomp_dtype {
	GRADCOMP_F32 = 0,
	GRADCOMP_F16 = 1,
	GRADCOMP_BF16 = 2,
	GRADCOMP_F64 = 3,
	GRADCOMP_I32 = 4,
	GRADCOMP_I64 = 5,
	GRADCOMP_U8 = 6,
	GRADCOMP_F8E4M3 = 7, /* OCP 8-bit floats: storage only, see cast_from_f32() */
	GRADCOMP_F8E5M2 = 8,
	/* A plugin without GRADCOMP_TRAIT_ALL_TYPES (collective.h) is not given these. */
	GRADCOMP_I8 = 9,
	GRADCOMP_I16 = 10,
	/* OCP 4-bit floats, two to a byte, in codes alone: see float8_pack(). No buffer is of this type. */
	GRADCOMP_F4E2M1 = 11
} gradcomp_dtype;

/* Returns the bytes of one element; 0 for a number that is no type, and for F4E2M1. */
static inline size_t gradcomp_dtype_bytes(gradcomp_dtype dtype)
{
	switch (dtype) {
	case GRADCOMP_F64:
	case GRADCOMP_I64:
		return 8;
	case GRADCOMP_F32:
	case GRADCOMP_I32:
		return 4;
	case GRADCOMP_F16:
	case GRADCOMP_BF16:
	case GRADCOMP_I16:
		return 2;
	case GRADCOMP_U8:
	case GRADCOMP_I8:
	case GRADCOMP_F8E4M3:
	case GRADCOMP_F8E5M2:
		return 1;
	case GRADCOMP_F4E2M1:
		return 0;
	}
	return 0;
}

/* An all-reduce does this with the elements that stand at one index. */
typedef enum gradcomp_op {
	GRADCOMP_SUM = 0,
	GRADCOMP_MAX = 1,
	GRADCOMP_MIN = 2,
	GRADCOMP_BOR = 3, /* bitwise or; integer types only */
	/* A plugin without GRADCOMP_TRAIT_ALL_TYPES is not given these. */
	GRADCOMP_PRODUCT = 4,
	GRADCOMP_BAND = 5, /* bitwise and, exclusive or; integer types only */
	GRADCOMP_BXOR = 6,
	/* The sum divided by the number of ranks, of integers rounded towards 0: of gradcomp_call alone, never given to a
	 * plugin or an operator. */
	GRADCOMP_AVG = 7
} gradcomp_op;

/* Where a buffer lives. A plugin that does not carry GRADCOMP_TRAIT_CUDA only
 * ever sees GRADCOMP_HOST. */
typedef enum gradcomp_device { GRADCOMP_HOST = 0, GRADCOMP_CUDA = 1 } gradcomp_device;

typedef enum gradcomp_log_level {
	GRADCOMP_LOG_ERROR = 0,
	GRADCOMP_LOG_WARN = 1,
	GRADCOMP_LOG_INFO = 2,
	GRADCOMP_LOG_DEBUG = 3
} gradcomp_log_level;

typedef enum gradcomp_param_type {
	GRADCOMP_PARAM_INT = 0,    /* value.i, min..max */
	GRADCOMP_PARAM_FLOAT = 1,  /* value.f, min..max, never NaN */
	GRADCOMP_PARAM_BOOL = 2,   /* value.i is 0 or 1; yes/no/true/false/on/off/1/0 */
	GRADCOMP_PARAM_SIZE = 3,   /* value.i bytes, min..max; 4096, 64K, 25M, 2G (powers of 1024) */
	GRADCOMP_PARAM_CHOICE = 4, /* value.i is the index into choices, value.s its name */
	GRADCOMP_PARAM_STRING = 5  /* value.s; lists are written a/b/c, since ',' ends a parameter */
} gradcomp_param_type;

/* One row of a plugin's parameter table. All pointers stay valid for the life
 * of the process (they are constants of the plugin). */
typedef struct gradcomp_param {
	const char *name; /* [a-z][a-z0-9_]*, at most 31 bytes */
	gradcomp_param_type type;
	uint32_t reserved0;
	const char *def;            /* the default as a user would type it; NULL: must be given */
	double min, max;            /* inclusive; INT, FLOAT and SIZE; equal means no bound */
	const char *const *choices; /* NULL-terminated; CHOICE only */
	const char *help;           /* one line, no final stop */
	uint64_t reserved[2];
} gradcomp_param;

/* The value of one parameter, checked against its row before the plugin sees
 * it. Handed over as an array in the table's order, valid only during the
 * call. */
typedef struct gradcomp_value {
	int64_t i;
	double f;
	const char *s;
	uint64_t reserved;
} gradcomp_value;

/* A field that a plugin uses without asking for it. */
typedef struct gradcomp_need {
	const char *name; /* "operators.copy_if" */
	uint64_t end;     /* where the field ends in its structure */
	uint64_t reserved[2];
} gradcomp_need;

/* The row of `field` in a plugin's `needs`, where `structure` is one of those that the host makes and hands
 * out: host, operators, links, layout, bucket, work, measured, codec, merger or exchange. */
#define GRADCOMP_NEED(structure, field) \
	{ \
#structure "." #field, \
			offsetof(struct gradcomp_##structure, field) + \
				sizeof(((struct gradcomp_##structure *)0)->field), \
		{ \
			0, 0 \
		} \
	}

/* The head of every plugin's descriptor: readable without creating anything,
 * without a job, CUDA or a network. */
typedef struct gradcomp_plugin_info {
	uint32_t abi_version; /* GRADCOMP_ABI_VERSION of the headers it was built with */
	uint32_t struct_size; /* sizeof of the whole descriptor */
	const char *name;     /* the name in the SPEC and in the file name: NAME.so */
	const char *version;
	const char *summary; /* one line */
	const char *licence; /* SPDX identifier */
	const gradcomp_param *params;
	uint32_t nparams;
	uint32_t nneeds;
	/* Optional, since ABI 2: fields that ABI 1 does not have and that the plugin uses without GRADCOMP_HAS().
	 * NULL: the plugin needs all of its own abi_version. With a list, an older host takes the plugin
	 * if it has these. A plugin that asks for everything it uses lists what every host has, as
	 * GRADCOMP_NEED(host, fail). */
	const gradcomp_need *needs;
	uint64_t reserved[1];
} gradcomp_plugin_info;

struct gradcomp_operators;
struct gradcomp_operators_v1;

/* Services of the runtime. A plugin calls these instead of linking against
 * libgradcomp, so it needs the headers alone. Valid until the instance's
 * destroy() has returned. Every function may be called on any thread. */
typedef struct gradcomp_host {
	uint32_t struct_size;
	uint32_t abi_version;
	void *ctx; /* first argument of log */

	/* Writes one line to the job's log. No newline, no prefix: the host adds both. */
	void (*log)(void *ctx, gradcomp_log_level level, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);

	/* Fills *err (may be NULL) and returns `status`, so that a failure is one
	 * line: return host->fail(err, GRADCOMP_ERR_RANGE, "...", ...); */
	gradcomp_status (*fail)(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
		GRADCOMP_PRINTF(3, 4);

	/* Allocates zeroed memory aligned to 64 bytes, NULL when there is none; release(NULL) is fine. For
	 * create(): nothing may be allocated while a step runs. */
	void *(*alloc)(size_t bytes);
	void (*release)(void *p);

	/* Plugins of ABI 1 and 2 know these as `operators` and `operators_on`: no plugin that is built with this
	 * header has a use for them. */
	const struct gradcomp_operators_v1 *operators_v1;
	const struct gradcomp_operators_v1 *(*operators_on_v1)(gradcomp_device device, gradcomp_error *err);
	/* Since ABI 3: operators on host memory (gradcomp/operators.h). A plugin with a list of needs has
	 * GRADCOMP_NEED(host, operators) in it, if it uses any. */
	const struct gradcomp_operators *operators;
	/* Operators on a device's memory; NULL and the reason in *err (may be NULL) where
	 * there are none. The first call for a device may take long. */
	const struct gradcomp_operators *(*operators_on)(gradcomp_device device, gradcomp_error *err);
} gradcomp_host;

#ifdef __cplusplus
}
#endif
#endif
