/* A table whose large operators are split into parts, for threads.h to share out.
 * The quantisers split themselves, block by block. */
#ifndef OPERATORS_SPLIT_H
#define OPERATORS_SPLIT_H

#include "gradcomp/operators.h"
#include "operators/operator_threads.h"

/* The table whose operators the parts call, set once before any is, and the operators that are SPLIT. */
extern const gradcomp_operators *split_plain;
#define SPLIT_DECLARED(result, name, parameters) result split_##name parameters;
#define WHOLE_DECLARED(result, name, parameters)
#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) host##_DECLARED(result, name, parameters)
#include "gradcomp/operators.def"

/* How many parts n numbers have, and part i of them. */
typedef struct split_span {
	size_t from, count;
} split_span;
static inline size_t split_parts(size_t n, size_t length)
{
	return n / length + (n % length != 0);
}
static inline split_span split_part(size_t n, size_t length, size_t i)
{
	return (split_span){i * length, n - i * length < length ? n - i * length : length};
}
/* Results that are one number come from at most this many parts, of this length. */
enum { SPLIT_RUNS = 256 };
static inline size_t split_length(size_t n)
{
	return n ? split_parts(split_parts(n, SPLIT_RUNS), OPERATOR_PART) * OPERATOR_PART : OPERATOR_PART;
}

#endif
