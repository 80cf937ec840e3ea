/* Inside the reader of config.json: a config being read, with the first error kept, so that a family reads as the list
 * of its keys. Used by model/architecture*.c only. */
#ifndef RK_MODEL_ARCHITECTURE_CONFIG_H
#define RK_MODEL_ARCHITECTURE_CONFIG_H

#include "model/architecture.h"

#define RK_CONFIG_SIZE_MAXIMUM ((int64_t)1 << 24) /* of a width; larger ones are not believed */

struct rk_config {
    struct rk_json_object object;         /* the text model's keys, text_config unwrapped */
    struct rk_architecture *architecture; /* layers, hidden, heads, vocabulary are set before a family reads */
    enum rk_status status;                /* the helpers do nothing once this is not RK_OK */
    struct rk_error *error;
};

/* A required width or count, 1 to RK_CONFIG_SIZE_MAXIMUM. */
void rk_config_size(struct rk_config *config, const char *key, int64_t *value);
/* Absent or null leaves *value. */
void rk_config_optional_size(struct rk_config *config, const char *key, int64_t minimum, int64_t *value);
void rk_config_optional_flag(struct rk_config *config, const char *key, bool *value);
void rk_config_optional_number(struct rk_config *config, const char *key, double minimum, double maximum,
                               double *value);
/* Reads an optional string and returns the index of it in the NULL-terminated list; absent is `otherwise`, one that is
 * not in the list is an error that names the list. */
int rk_config_optional_choice(struct rk_config *config, const char *key, const char *const *choices, int otherwise);
/* Records a failure unless one is recorded; the file's name is put before the text. */
void rk_config_fail(struct rk_config *config, const char *format, ...) RK_PRINTF_LIKE(2, 3);
/* Adds a key to architecture->forward_only_keys. */
void rk_config_forward_only(struct rk_config *config, const char *key);

/* num_key_value_heads and head_dim. An absent head_dim is hidden / heads where the family says so, else an error. */
void rk_config_grouped_query(struct rk_config *config, bool head_dim_may_be_absent);
/* layer_types, if present: fills `limited` and `span`. Returns whether it was present. */
bool rk_config_layer_types(struct rk_config *config);

/* One per row of the family table. */
void rk_config_read_llama(struct rk_config *config);
void rk_config_read_qwen3(struct rk_config *config);
void rk_config_read_mixtral(struct rk_config *config);
void rk_config_read_olmoe(struct rk_config *config);
void rk_config_read_qwen2_moe(struct rk_config *config);
void rk_config_read_qwen3_moe(struct rk_config *config);
void rk_config_read_deepseek_v2(struct rk_config *config);
void rk_config_read_deepseek_v3(struct rk_config *config);
void rk_config_read_glm4_moe(struct rk_config *config);
void rk_config_read_gpt_oss(struct rk_config *config);
void rk_config_read_llama4(struct rk_config *config);
void rk_config_read_minimax_m2(struct rk_config *config);

#endif
