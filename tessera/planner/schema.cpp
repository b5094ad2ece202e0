#include "tessera/planner/description.h"

namespace tessera::planner {

std::string schema() {
  return R"json({
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "What tessera plan reads: a described model and a described cluster",
  "anyOf": [{"$ref": "#/$defs/model"}, {"$ref": "#/$defs/cluster"}],
  "$defs": {
    "model": {
      "type": "object",
      "additionalProperties": false,
      "required": ["name", "global_batch_size", "precision", "layers"],
      "properties": {
        "name": {"type": "string"},
        "global_batch_size": {"type": "integer", "minimum": 1},
        "sequence_length": {"type": "integer", "minimum": 1},
        "hidden_size": {"type": "integer", "minimum": 1},
        "num_attention_heads": {"type": "integer", "minimum": 1},
        "vocabulary_size": {"type": "integer", "minimum": 1},
        "precision": {
          "type": "string",
          "pattern": "^(fp16|bf16|f16|fp32|f32)",
          "description": "begins with the type of parameters and activations"
        },
        "activation_checkpointing": {
          "enum": ["every layer", "none"],
          "default": "none"
        },
        "layers": {
          "type": "array",
          "minItems": 1,
          "description": "in order of execution; pipelines are cut between them",
          "items": {"$ref": "#/$defs/layer"}
        }
      }
    },
    "layer": {
      "type": "object",
      "additionalProperties": false,
      "required": [
        "name", "kind", "parameters", "output_elements_per_sample",
        "forward_seconds_per_sample"
      ],
      "properties": {
        "name": {"type": "string"},
        "kind": {
          "type": "string",
          "description": "transformer_layer: divided by tensor parallelism, with two all-reduces in its forward; lm_head: outputs are logits; others run as measured"
        },
        "parameters": {"type": "integer", "minimum": 0},
        "shares_parameters_with": {
          "type": "string",
          "description": "name of the layer whose parameters this one uses"
        },
        "output_elements_per_sample": {"type": "integer", "minimum": 0},
        "forward_seconds_per_sample": {
          "type": "object",
          "minProperties": 1,
          "description": "device name -> tensor-parallel degree -> seconds of the forward of one sample",
          "additionalProperties": {
            "type": "object",
            "required": ["1"],
            "propertyNames": {"pattern": "^[1-9][0-9]{0,5}$"},
            "additionalProperties": {"type": "number", "minimum": 0}
          }
        },
        "fixed_seconds": {
          "type": "object",
          "description": "device name -> the part of these seconds that a microbatch costs whatever its size",
          "additionalProperties": {"type": "number", "minimum": 0}
        }
      }
    },
    "cluster": {
      "type": "object",
      "additionalProperties": false,
      "required": ["name", "devices", "nodes"],
      "properties": {
        "name": {"type": "string"},
        "devices": {
          "type": "object",
          "minProperties": 1,
          "additionalProperties": {
            "type": "object",
            "additionalProperties": false,
            "required": ["memory_gib"],
            "properties": {
              "memory_gib": {"type": "number", "exclusiveMinimum": 0},
              "memory_gb_per_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "bandwidth of the device's memory; not needed for devices the planner knows by name"
              },
              "product_seconds": {
                "type": "object",
                "additionalProperties": false,
                "description": "measured: products of square matrices of this many rows",
                "properties": {
                  "f32": {"$ref": "#/$defs/points"},
                  "bf16": {"$ref": "#/$defs/points"}
                }
              },
              "batched_product_seconds": {
                "type": "object",
                "additionalProperties": false,
                "description": "measured: one of the products of an operator that makes many small ones",
                "properties": {
                  "f32": {"$ref": "#/$defs/points"},
                  "bf16": {"$ref": "#/$defs/points"}
                }
              },
              "weight_seconds": {
                "$ref": "#/$defs/points",
                "maxItems": 1,
                "description": "measured: what reading a weight of so many elements from memory adds to a product"
              },
              "move_seconds": {"$ref": "#/$defs/points"},
              "function_seconds": {"$ref": "#/$defs/points"},
              "random_seconds": {"$ref": "#/$defs/points"},
              "operator_seconds": {
                "type": "object",
                "description": "measured: operators by name, where these are not as the examples above",
                "additionalProperties": {"$ref": "#/$defs/points"}
              }
            }
          }
        },
        "nodes": {
          "type": "array",
          "minItems": 1,
          "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["device", "count"],
            "properties": {
              "device": {"type": "string"},
              "count": {"type": "integer", "minimum": 1},
              "intra_node_gbit_per_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "between two devices of the node; needed where there are two"
              },
              "inter_node_gbit_per_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "of the node's network, each direction, shared by its devices; needed where there are several nodes"
              },
              "cores": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "devices that compute at full speed at one time, where they share processor cores"
              },
              "latency_us": {"type": "number", "minimum": 0},
              "host": {"type": "string"}
            }
          }
        },
        "links": {
          "type": "array",
          "description": "what two nodes reach between each other, where their networks alone do not say it",
          "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["nodes", "gbit_per_s"],
            "properties": {
              "nodes": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0},
                "minItems": 2,
                "maxItems": 2
              },
              "gbit_per_s": {"type": "number", "exclusiveMinimum": 0},
              "latency_us": {"type": "number", "minimum": 0}
            }
          }
        },
        "collectives": {
          "type": "array",
          "description": "measured, all groups of the size at work at one time",
          "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["operation", "ranks", "nodes", "bytes", "seconds"],
            "properties": {
              "operation": {"type": "string"},
              "ranks": {"type": "integer", "minimum": 2},
              "nodes": {"type": "integer", "minimum": 1},
              "bytes": {"type": "number", "exclusiveMinimum": 0},
              "seconds": {"type": "number", "exclusiveMinimum": 0}
            }
          }
        },
        "measured": {
          "type": "boolean",
          "default": false,
          "description": "bandwidths are payload, as tessera probe measures them"
        },
        "probe": {
          "type": "object",
          "additionalProperties": false,
          "required": ["rounds", "repeated", "compute_spread", "link_spread", "collective_spread"],
          "description": "how often tessera probe measured, and how far the two best rounds are apart at most, as a share of the best",
          "properties": {
            "rounds": {"type": "integer", "minimum": 1},
            "repeated": {"type": "integer", "minimum": 0},
            "compute_spread": {"type": "number", "minimum": 0},
            "link_spread": {"type": "number", "minimum": 0},
            "collective_spread": {"type": "number", "minimum": 0}
          }
        }
      }
    },
    "points": {
      "type": "array",
      "description": "[size, seconds] or [size, seconds, seconds of the backward] in order of size; sizes are elements, of products rows",
      "items": {
        "type": "array",
        "items": {"type": "number", "exclusiveMinimum": 0},
        "minItems": 2,
        "maxItems": 3
      }
    }
  }
}
)json";
}

} // namespace tessera::planner
