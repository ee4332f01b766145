/* Numbers as text, in and out, the same whatever locale the application has
 * set: a Python program under LC_NUMERIC=de_DE must still read and write "0.5".
 * Any thread. */
#ifndef BASE_NUMBER_H
#define BASE_NUMBER_H

#include <stddef.h>
#include <stdint.h>

typedef enum number_result {
	NUMBER_OK = 0,
	NUMBER_MALFORMED, /* empty, trailing characters, NaN, not of this form */
	NUMBER_OVERFLOW   /* right in form, too large for the type */
} number_result;

/* Reads a decimal number with an optional sign. *out is set on NUMBER_OK only. */
number_result number_int(const char *text, int64_t *out);
/* Reads a decimal number with an optional fraction and exponent; no hexadecimal, no "inf". */
number_result number_float(const char *text, double *out);
/* Bytes: digits and an optional K, M, G or T (powers of 1024), which may be
 * followed by B or iB; upper and lower case. */
number_result number_size(const char *text, int64_t *out);
/* A size, or a share of something as "90%" (1 to 100): *percent is 0 for a size. */
number_result number_share(const char *text, int64_t *bytes, int *percent);
/* Percentages HIGH,LOW: 100 >= HIGH >= LOW >= 1. */
number_result number_marks(const char *text, unsigned *high, unsigned *low);
/* Ports FIRST-LAST; "" is 0 and 0, any free one. */
number_result number_ports(const char *text, uint16_t *first, uint16_t *last);

/* Reads a block of addresses, "10.0.0.0/8" or "fd00::/8": *bytes of ip (4 or 16) and the bits that count. */
number_result number_block(const char *text, unsigned char ip[16], int *bytes, int *prefix);

#define NUMBER_TEXT 32

/* The shortest decimal that reads back as x; "inf" and "nan" as printf has
 * them. */
void number_put_float(char out[NUMBER_TEXT], double x);
/* Writes a size: 262144 -> "256K", 1000 -> "1000". */
void number_put_size(char out[NUMBER_TEXT], int64_t bytes);

#endif
