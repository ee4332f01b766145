#include "config/memory_rows.h"

#include <stdlib.h>
#include <string.h>

enum { ADDED = 1 }; /* in reserved0, which is zero in a plugin's own rows */

static const char *const forms[MEMORY_FORMS + 1] = {
	[MEMORY_F32] = "f32", [MEMORY_BF16] = "bf16", [MEMORY_I8] = "i8", [MEMORY_FORMS] = NULL};
static const gradcomp_param rows[MEMORY_ROWS] = {
	[MEMORY_ROWS_FORM] = {.name = "memory",
                              .type = GRADCOMP_PARAM_CHOICE,
                              .reserved0 = ADDED,
                              .def = "f32",
                              .choices = forms,
                              .help = "how error memory is kept: 4, 2 or 1.03 bytes a number"},
	[MEMORY_ROWS_AVERAGE] =
		{.name = "average",
                 .type = GRADCOMP_PARAM_FLOAT,
                 .reserved0 = ADDED,
                 .def = "1",
                 .min = 0,
                 .max = 1,
                 .help = "share of the newest loss in the moving average that error memory is; below 1 a part "
                         "is never sent"},
};

bool memory_rows_has(const gradcomp_param *row)
{
	return row->reserved0 == ADDED;
}

const gradcomp_param *memory_rows_join(const struct gradcomp_compressor_v1 *c, uint32_t *nrows)
{
	const uint32_t n = *nrows = c->info.nparams;
	gradcomp_param *all;
	if (!(c->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK))
		return c->info.params;
	for (uint32_t i = 0; i < n; i++)
		for (int k = 0; k < MEMORY_ROWS; k++)
			if (!strcmp(c->info.params[i].name, rows[k].name))
				return c->info.params;
	all = calloc((size_t)n + MEMORY_ROWS, sizeof *all);
	if (!all)
		return NULL;
	if (n)
		memcpy(all, c->info.params, n * sizeof *all);
	memcpy(all + n, rows, sizeof rows);
	*nrows = n + MEMORY_ROWS;
	return all;
}

void memory_rows_free(const gradcomp_plugin_info *info)
{
	if (info->nparams && memory_rows_has(&info->params[info->nparams - 1]))
		free((void *)(uintptr_t)info->params);
}

memory_form memory_rows_asked(const gradcomp_plugin_info *info, const gradcomp_value *values, float *average)
{
	const uint32_t own = info->nparams - MEMORY_ROWS;
	*average = 1;
	if (info->nparams < MEMORY_ROWS || !memory_rows_has(&info->params[own]))
		return MEMORY_F32;
	*average = (float)values[own + MEMORY_ROWS_AVERAGE].f;
	return (memory_form)values[own + MEMORY_ROWS_FORM].i;
}

bool memory_rows_special(const gradcomp_plugin_info *info, const gradcomp_value *values)
{
	float average;
	return memory_rows_asked(info, values, &average) != MEMORY_F32 || average < 1;
}

double memory_rows_bytes(memory_form form)
{
	/* 64 integers share a step of 2 bytes. */
	static const double bytes[MEMORY_FORMS] = {[MEMORY_F32] = 4, [MEMORY_BF16] = 2, [MEMORY_I8] = 66.0 / 64};
	return bytes[form];
}
