/* Inside of fields.h. */
#ifndef MODEL_FIELDS_PARTS_H
#define MODEL_FIELDS_PARTS_H

#include "fields.h"

#define WIDEST 9007199254740992.0 /* 2^53 */

static inline void *fields_place(const fields *t, const field *r)
{
	return (char *)t->base + r->at;
}

/* Of a FIELD_NAME; the form says in words what is right. */
int fields_name_ok(const char *name);
extern const char fields_name_form[];

#endif
