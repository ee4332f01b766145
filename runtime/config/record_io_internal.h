/* Inside of fields.h. */
#ifndef CONFIG_RECORD_IO_INTERNAL_H
#define CONFIG_RECORD_IO_INTERNAL_H

#include "config/record_io.h"

#define WIDEST 9007199254740992.0 /* 2^53 */

static inline void *record_io_place(const record_io *t, const field *r)
{
	return (char *)t->base + r->at;
}

/* Of a FIELD_NAME; the form says in words what is right. */
int record_io_name_ok(const char *name);
extern const char record_io_name_form[];

#endif
