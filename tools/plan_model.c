/* A model that grows, layer by layer, as it is read from what another program has written; and where models are
 * installed. */
#include "tools/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/install.h"
#include "config/record_io.h"
#include "gradcomp/stage.h"

const char *plan_models_folder(void)
{
	static char *installed;
	const char *set = secure_getenv("GRADCOMP_MODELS");
	if (set && *set)
		return set;
	if (!installed)
		installed = install_path(GRADCOMP_DATADIR "/gradcomp/models");
	return installed ? installed : GRADCOMP_DATADIR "/gradcomp/models";
}

#ifdef HAVE_JANSSON
#include "cost/machine.h"
#include "schedule/task_list.h"
#include "tools/plan_import.h"

static void *room_for(void *array, uint32_t n, uint32_t *room, size_t size)
{
	void *more = array;
	if (n < *room)
		return array;
	more = reallocarray(array, *room ? 2 * (size_t)*room : 64, size);
	if (more)
		*room = *room ? 2 * *room : 64;
	return more;
}

gradcomp_status plan_import_tensor(plan_import *to, const char *name, const uint64_t *dims, uint32_t ndim,
                                   double operations)
{
	model_tensor t = {.ndim = ndim, .forward = operations / PLAN_RATE, .backward = 2 * operations / PLAN_RATE},
		     *more;
	char shown[200];
	uint64_t numel = 1;
	for (uint32_t d = 0; d < ndim; d++) {
		if (dims[d] && numel > NUMEL_MAX / dims[d])
			numel = NUMEL_MAX + 1;
		else
			numel *= dims[d];
	}
	if (ndim > PLAN_DIMS || numel > NUMEL_MAX - to->numel || to->m->ntensors == TENSORS_MOST)
		return error_set(to->err, GRADCOMP_ERR_RANGE,
		                 "%s: with tensor '%s' the model has more than 2^48 parameters, %d tensors, or %d "
		                 "dimensions",
		                 to->path, gradcomp_printable(name, shown, sizeof shown), TENSORS_MOST, PLAN_DIMS);
	more = room_for(to->m->tensors, to->m->ntensors, &to->room, sizeof t);
	if (!more)
		return error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory", to->path);
	to->m->tensors = more;
	t.name = strdup(name);
	t.dims = malloc((ndim ? ndim : 1) * sizeof *t.dims);
	if (!t.name || !t.dims) {
		free(t.name);
		free(t.dims);
		return error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory", to->path);
	}
	memcpy(t.dims, dims, ndim * sizeof *dims);
	to->numel += numel;
	to->m->tensors[to->m->ntensors++] = t;
	return GRADCOMP_OK;
}

gradcomp_status plan_import_layer(plan_import *to, const char *name)
{
	model_layer *more = room_for(to->m->layers, to->m->nlayers, &to->layers_room, sizeof *more);
	if (more) {
		to->m->layers = more;
		more[to->m->nlayers] = (model_layer){.name = strdup(name), .first = to->m->ntensors};
	}
	if (!more || !more[to->m->nlayers].name)
		return error_set(to->err, GRADCOMP_ERR_NOMEM, "%s: no memory", to->path);
	to->m->nlayers++;
	return GRADCOMP_OK;
}
#endif
