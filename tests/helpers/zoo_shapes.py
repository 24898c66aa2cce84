"""Small bundles of the shapes that published ones have: the same ids, references, expressions and transforms."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml

Config = dict[str, Any]

IMPORTS = ["$import glob", "$import os", "$import json"]
DEVICE = "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')"


FORMAT = {
    "format": "magnitude",
    "spatial_shape": ["*", "*"],
    "dtype": "float32",
    "value_range": [0, 1],
    "is_patch_data": False,
    "channel_def": {"0": "what the channel holds"},
}
"""Format of the network's inputs and outputs, for the metadata."""


def write_bundle(root: Path, configs: dict[str, Config], channels: int, suffix: str = ".json") -> Path:
    """Write a bundle's folder.

    Args:
        root: The folder.
        configs: Stem to content.
        channels: Of the network's output, for the metadata.
        suffix: ``.json``, ``.yaml`` or ``.yml``.
    """
    (root / "configs").mkdir(parents=True)
    (root / "docs").mkdir()
    (root / "models").mkdir()
    for stem, content in configs.items():
        plain = json.loads(json.dumps(content))  # no object twice, so that YAML has no aliases
        text = json.dumps(plain, indent=4) if suffix == ".json" else yaml.safe_dump(plain, sort_keys=False)
        (root / "configs" / f"{stem}{suffix}").write_text(text)
    metadata = {
        "schema": "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json",
        "version": "0.1.0",
        "name": root.name,
        "monai_version": "1.4.0",
        "pytorch_version": "2.4.0",
        "numpy_version": "1.24.4",
        "required_packages_version": {"nibabel": "5.2.1"},
        "task": "A made-up task",
        "description": "A made-up bundle",
        "authors": "nobody",
        "copyright": "nobody",
        "changelog": {"0.1.0": "made up"},
        "network_data_format": {
            "inputs": {"image": FORMAT | {"type": "image", "num_channels": 1}},
            "outputs": {"pred": FORMAT | {"type": "image", "num_channels": channels}},
        },
    }
    (root / "configs" / "metadata.json").write_text(json.dumps(metadata, indent=4))
    (root / "docs" / "README.md").write_text("# A made-up bundle\n")
    (root / "LICENSE").write_text("Apache-2.0\n")
    return root


def compose(*transforms: Config) -> Config:
    return {"_target_": "Compose", "transforms": list(transforms)}


def step(name: str, keys: Any = ("image", "label"), **arguments: Any) -> Config:
    return {"_target_": name, "keys": keys if isinstance(keys, str) else list(keys), **arguments}


def engines(train: Config, validate: Config, **trainer: Any) -> Config:
    """The sections ``train`` and ``validate`` around their data sets, as most bundles of the zoo have them."""
    return {
        "train": {
            "dataloader": {
                "_target_": "DataLoader",
                "dataset": "@train#dataset",
                "batch_size": 2,
                "shuffle": True,
                "num_workers": 4,
            },
            "inferer": {"_target_": "SimpleInferer"},
            "handlers": [
                {
                    "_target_": "ValidationHandler",
                    "validator": "@validate#evaluator",
                    "epoch_level": True,
                    "interval": "@val_interval",
                },
                {
                    "_target_": "StatsHandler",
                    "tag_name": "train_loss",
                    "output_transform": "$monai.handlers.from_engine(['loss'], first=True)",
                },
            ],
            "trainer": {
                "_target_": "SupervisedTrainer",
                "max_epochs": 100,
                "device": "@device",
                "train_data_loader": "@train#dataloader",
                "network": "@network",
                "loss_function": "@loss",
                "optimizer": "@optimizer",
                "inferer": "@train#inferer",
                "postprocessing": "@train#postprocessing",
                "key_train_metric": "@train#key_metric",
                "train_handlers": "@train#handlers",
                "amp": True,
                **trainer,
            },
            **train,
        },
        "validate": {
            "dataloader": {
                "_target_": "DataLoader",
                "dataset": "@validate#dataset",
                "batch_size": 1,
                "shuffle": False,
                "num_workers": 4,
            },
            "inferer": {"_target_": "SimpleInferer"},
            "postprocessing": "%train#postprocessing",
            "handlers": [
                {"_target_": "StatsHandler", "iteration_log": False},
                {
                    "_target_": "CheckpointSaver",
                    "save_dir": "@ckpt_dir",
                    "save_dict": {"model": "@network"},
                    "save_key_metric": True,
                    "key_metric_filename": "model.pt",
                },
            ],
            "evaluator": {
                "_target_": "SupervisedEvaluator",
                "device": "@device",
                "val_data_loader": "@validate#dataloader",
                "network": "@network",
                "inferer": "@validate#inferer",
                "postprocessing": "@validate#postprocessing",
                "key_val_metric": "@validate#key_metric",
                "val_handlers": "@validate#handlers",
            },
            **validate,
        },
    }


def base(dataset_dir: str, network: Config, loss: Config) -> Config:
    """The ids at the top."""
    return {
        "imports": IMPORTS,
        "bundle_root": ".",
        "ckpt_dir": "$@bundle_root + '/models'",
        "dataset_dir": dataset_dir,
        "val_interval": 5,
        "device": DEVICE,
        "network_def": network,
        "network": "$@network_def.to(@device)",
        "loss": loss,
        "optimizer": {"_target_": "torch.optim.Adam", "params": "$@network.parameters()", "lr": 0.0001},
    }


SEQUENCES = {"initialize": ["$monai.utils.set_determinism(seed=123)"], "run": ["$@train#trainer.run()"]}

DICE = {
    "val_mean_dice": {
        "_target_": "MeanDice",
        "include_background": False,
        "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
    }
}

SLIDING = {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 16], "sw_batch_size": 4, "overlap": 0.5}


def spleen(root: Path) -> Path:
    """A 3-D segmentation: one list that is cut by a number, patches in training, a sliding window in validation."""
    cases = "$[{{'image': i, 'label': l}} for i, l in zip(@images[{0}], @labels[{0}])]"
    accuracy = {
        "_target_": "ignite.metrics.Accuracy",
        "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
    }
    train = {
        "deterministic_transforms": [
            step("LoadImaged"),
            step("EnsureChannelFirstd"),
            step("Orientationd", axcodes="RAS"),
            step("Spacingd", pixdim=[1.5, 1.5, 2.0], mode=["bilinear", "nearest"]),
            step("ScaleIntensityRanged", "image", a_min=-57, a_max=164, b_min=0, b_max=1, clip=True),
            step("EnsureTyped"),
        ],
        "random_transforms": [
            step(
                "RandCropByPosNegLabeld",
                label_key="label",
                spatial_size=[16, 16, 16],
                pos=1,
                neg=1,
                num_samples=4,
                image_key="image",
                image_threshold=0,
            )
        ],
        "preprocessing": {
            "_target_": "Compose",
            "transforms": "$@train#deterministic_transforms + @train#random_transforms",
        },
        "dataset": {
            "_target_": "CacheDataset",
            "data": cases.format(":-9"),
            "transform": "@train#preprocessing",
            "cache_rate": 1.0,
            "num_workers": 4,
        },
        "postprocessing": compose(
            step("Activationsd", "pred", softmax=True),
            step("AsDiscreted", ("pred", "label"), argmax=[True, False], to_onehot=2),
        ),
        "key_metric": {"train_accuracy": accuracy},
    }
    validate = {
        "preprocessing": {"_target_": "Compose", "transforms": "%train#deterministic_transforms"},
        "dataset": {
            "_target_": "CacheDataset",
            "data": cases.format("-9:"),
            "transform": "@validate#preprocessing",
            "cache_rate": 1.0,
        },
        "inferer": SLIDING,
        "key_metric": DICE,
        "additional_metrics": {"val_accuracy": accuracy},
    }
    unet = {
        "_target_": "UNet",
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
        "channels": [4, 8],
        "strides": [2],
        "norm": "batch",
    }
    loss = {"_target_": "DiceCELoss", "to_onehot_y": True, "softmax": True, "squared_pred": True, "batch": True}
    config = base("/workspace/data/Task09_Spleen", unet, loss)
    config |= {
        "images": "$list(sorted(glob.glob(@dataset_dir + '/imagesTr/*.nii.gz')))",
        "labels": "$list(sorted(glob.glob(@dataset_dir + '/labelsTr/*.nii.gz')))",
        **engines(train, validate),
        **SEQUENCES,
    }
    several = {
        "network": {
            "_target_": "torch.nn.parallel.DistributedDataParallel",
            "module": "$@network_def.to(@device)",
            "device_ids": ["@device"],
        },
        "initialize": ["$import torch.distributed as dist", "$dist.init_process_group(backend='nccl')"],
    }
    evaluate = {
        "validate#postprocessing": compose(
            step("Activationsd", "pred", softmax=True),
            step(
                "Invertd",
                ("pred", "label"),
                transform="@validate#preprocessing",
                orig_keys="image",
                nearest_interp=[False, True],
                to_tensor=True,
            ),
            step("AsDiscreted", ("pred", "label"), argmax=[True, False], to_onehot=2),
            step("SaveImaged", "pred", output_dir="$@bundle_root + '/eval'", resample=False),
        ),
        "validate#handlers": [
            {
                "_target_": "CheckpointLoader",
                "load_path": "$@ckpt_dir + '/model.pt'",
                "load_dict": {"model": "@network"},
            }
        ],
        "run": ["$@validate#evaluator.run()"],
    }
    inference = {
        "imports": IMPORTS,
        "bundle_root": ".",
        "dataset_dir": "/workspace/data/Task09_Spleen",
        "datalist": "$list(sorted(glob.glob(@dataset_dir + '/imagesTs/*.nii.gz')))",
        "device": DEVICE,
        "network_def": unet,
        "network": "$@network_def.to(@device)",
        "preprocessing": compose(step("LoadImaged", "image"), step("EnsureChannelFirstd", "image")),
        "dataset": {"_target_": "Dataset", "data": "$[{'image': i} for i in @datalist]", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1},
        "inferer": SLIDING,
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network",
            "inferer": "@inferer",
            "val_handlers": [
                {
                    "_target_": "CheckpointLoader",
                    "load_path": "$@bundle_root + '/models/model.pt'",
                    "load_dict": {"model": "@network"},
                }
            ],
        },
        "run": ["$@evaluator.run()"],
    }
    configs = {"train": config, "multi_gpu_train": several, "evaluate": evaluate, "inference": inference}
    return write_bundle(root, configs, 2)


def tools(root: Path) -> Path:
    """A 2-D segmentation of colour images, with folders of its own for training and validation."""
    cases = "$[{{'image': i, 'label': l}} for i, l in zip(@{0}_images, @{0}_labels)]"
    train = {
        "preprocessing": compose(
            step("LoadImaged", reader="PILReader"),
            step("EnsureChannelFirstd"),
            step("Resized", spatial_size=[16, 16], mode=["bilinear", "nearest"]),
            step("ScaleIntensityd", "image"),
            step("RandRotated", range_x=0.5, prob=0.8, mode=["bilinear", "nearest"]),
            step("AsDiscreted", "label", threshold=1),
        ),
        "dataset": {"_target_": "Dataset", "data": cases.format("train"), "transform": "@train#preprocessing"},
        "postprocessing": compose(
            step("Activationsd", "pred", softmax=True),
            step("AsDiscreted", ("pred", "label"), argmax=[True, False], to_onehot=2),
        ),
        "key_metric": DICE,
    }
    validate = {
        "preprocessing": compose(
            step("LoadImaged", reader="PILReader"),
            step("EnsureChannelFirstd"),
            step("ScaleIntensityd", "image"),
            step("AsDiscreted", "label", threshold=1),
        ),
        "dataset": {"_target_": "Dataset", "data": cases.format("val"), "transform": "@validate#preprocessing"},
        "key_metric": DICE,
    }
    unet = {
        "_target_": "UNet",
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 2,
        "channels": [4, 8],
        "strides": [2],
    }
    config = base("/workspace/data/tools", unet, {"_target_": "DiceLoss", "softmax": True, "to_onehot_y": True})
    for side in ("train", "val"):
        for what, folder in (("images", "inputs"), ("labels", "masks")):
            path = f"os.path.join(@dataset_dir, '{side}', '{folder}', '*.png')"
            config[f"{side}_{what}"] = f"$sorted(glob.glob({path}))"
    return write_bundle(root, {"train": config | engines(train, validate) | SEQUENCES}, 2)


def brain_tumours(root: Path) -> Path:
    """Overlapping masks, a channel for each region; a Decathlon list in the bundle; a schedule of the learning rate."""
    load = "$monai.data.load_decathlon_datalist(@data_list_file_path, data_list_key='{}', base_dir=@dataset_dir)"
    deterministic = [
        step("LoadImaged"),
        step("EnsureChannelFirstd", "image"),
        step("ConvertToMultiChannelBasedOnBratsClassesd", "label"),
        step("NormalizeIntensityd", "image", nonzero=True, channel_wise=True),
    ]
    train = {
        "preprocessing": compose(
            *deterministic,
            step("RandSpatialCropd", roi_size=[16, 16, 16], random_size=False),
            step("RandFlipd", prob=0.5, spatial_axis=0),
        ),
        "dataset": {
            "_target_": "Dataset",
            "data": load.format("training"),
            "transform": "@train#preprocessing",
        },
        "postprocessing": compose(
            step("Activationsd", "pred", sigmoid=True),
            step("AsDiscreted", "pred", threshold=0.5),
        ),
        "key_metric": {"train_mean_dice": DICE["val_mean_dice"]},
        "handlers": [
            {"_target_": "LrScheduleHandler", "lr_scheduler": "@lr_scheduler", "print_lr": True},
            {"_target_": "ValidationHandler", "validator": "@validate#evaluator", "interval": "@val_interval"},
            {"_target_": "TensorBoardStatsHandler", "log_dir": "@output_dir"},
        ],
    }
    validate = {
        "preprocessing": compose(*deterministic),
        "dataset": {
            "_target_": "Dataset",
            "data": load.format("validation"),
            "transform": "@validate#preprocessing",
        },
        "inferer": SLIDING,
        "key_metric": DICE,
    }
    network = {
        "_target_": "SegResNet",
        "blocks_down": [1, 1],
        "blocks_up": [1],
        "init_filters": 8,
        "in_channels": 4,
        "out_channels": 3,
    }
    loss = {"_target_": "DiceLoss", "smooth_nr": 0, "squared_pred": True, "to_onehot_y": False, "sigmoid": True}
    config = base("/workspace/data/brats2018", network, loss)
    config |= {
        "output_dir": "$@bundle_root + '/eval'",
        "data_list_file_path": "$@bundle_root + '/configs/datalist.json'",
        "lr_scheduler": {
            "_target_": "torch.optim.lr_scheduler.CosineAnnealingLR",
            "optimizer": "@optimizer",
            "T_max": 300,
        },
        **engines(train, validate),
        **SEQUENCES,
    }
    evaluate = {
        "validate#dataset#data": load.format("testing"),
        "validate#handlers": [
            {
                "_target_": "CheckpointLoader",
                "load_path": "$@ckpt_dir + '/best.pt'",
                "load_dict": {"model": "@network"},
            }
        ],
        "run": ["$@validate#evaluator.run()"],
    }
    root = write_bundle(root, {"train": config, "evaluate": evaluate}, 3)
    listed = [{"image": [f"c{k}_{n}.nii.gz" for n in range(4)], "label": f"c{k}_seg.nii.gz"} for k in range(4)]
    (root / "configs" / "datalist.json").write_text(
        json.dumps({"training": listed[:3], "validation": listed[3:], "testing": []})
    )
    return root


def in_body(root: Path) -> Path:
    """A classification with cached data: list files in the data's folder, the label a number."""
    deterministic = [
        step("LoadImaged", "image"),
        step("EnsureChannelFirstd", "image"),
        step("Resized", "image", spatial_size=[16, 16]),
        step("ScaleIntensityd", "image"),
    ]
    train = {
        "preprocessing": compose(*deterministic, step("RandFlipd", "image", prob=0.5)),
        "dataset": {
            "_target_": "CacheDataset",
            "data": "@train_datalist",
            "transform": "@train#preprocessing",
            "cache_rate": 0.1,
        },
        "postprocessing": compose(
            step("Activationsd", "pred", softmax=True),
            step("AsDiscreted", ("pred", "label"), argmax=[True, False], to_onehot=2),
        ),
        "key_metric": {
            "train_accuracy": {
                "_target_": "ignite.metrics.Accuracy",
                "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
            }
        },
    }
    validate = {
        "preprocessing": compose(*deterministic),
        "dataset": {
            "_target_": "CacheDataset",
            "data": "@val_datalist",
            "transform": "@validate#preprocessing",
            "cache_rate": 0.1,
        },
        "key_metric": {
            "val_auc": {"_target_": "ROCAUC", "output_transform": "$monai.handlers.from_engine(['pred', 'label'])"}
        },
    }
    network = {
        "_target_": "DenseNet",
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 2,
        "init_features": 4,
        "growth_rate": 4,
        "block_config": [1, 1],
    }
    config = base("/workspace/data/endoscopic_inbody", network, {"_target_": "torch.nn.CrossEntropyLoss"})
    load = (
        "$[{{'image': os.path.join(@dataset_dir, d['image']), 'label': d['label']}} for d in json.load(open(@{}_json))]"
    )
    config |= {
        "train_json": "$@dataset_dir + '/train_samples.json'",
        "val_json": "$@dataset_dir + '/val_samples.json'",
        "train_datalist": load.format("train"),
        "val_datalist": load.format("val"),
        **engines(train, validate),
        **SEQUENCES,
    }
    return write_bundle(root, {"train": config}, 2)


def hippocampus(root: Path) -> Path:
    """A bundle in YAML, whose data sets find the Decathlon's files below ``dataset_dir`` themselves."""
    dataset = {
        "_target_": "DecathlonDataset",
        "root_dir": "@dataset_dir",
        "task": "Task04_Hippocampus",
        "download": False,
    }
    transforms = [step("LoadImaged"), step("EnsureChannelFirstd"), step("NormalizeIntensityd", "image")]
    train = {
        "preprocessing": compose(*transforms, step("RandFlipd", prob=0.5, spatial_axis=0)),
        "dataset": dataset | {"section": "training", "transform": "@train#preprocessing"},
        "postprocessing": compose(
            step("Activationsd", "pred", softmax=True),
            step("AsDiscreted", ("pred", "label"), argmax=[True, False], to_onehot=3),
        ),
        "key_metric": DICE,
    }
    validate = {
        "preprocessing": compose(*transforms),
        "dataset": dataset | {"section": "validation", "transform": "@validate#preprocessing"},
        "key_metric": DICE,
    }
    network = {"_target_": "BasicUNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 3, "features": [4] * 6}
    config = base("/data", network, {"_target_": "DiceFocalLoss", "to_onehot_y": True, "softmax": True})
    config |= engines(train, validate) | SEQUENCES
    return write_bundle(root, {"train": config}, 3, ".yaml")


def lung_nodules(root: Path) -> Path:
    """A detection with a trainer of its own; no federation can be made of it."""
    config = base("/data/luna16", {"_target_": "resnet_fpn_feature_extractor"}, {"_target_": "torch.nn.L1Loss"})
    train = {
        "preprocessing": compose(step("LoadImaged", "image")),
        "dataset": {
            "_target_": "Dataset",
            "data": "$monai.data.load_decathlon_datalist(@dataset_dir + '/dataset.json', base_dir=@dataset_dir)",
            "transform": "@train#preprocessing",
        },
        "postprocessing": None,
        "key_metric": None,
    }
    validate = copy.deepcopy(train)
    validate["evaluator"] = {"_target_": "scripts.evaluator.DetectionEvaluator", "device": "@device"}
    sections = engines(train, validate, _target_="scripts.trainer.DetectionTrainer", detector="@network")
    root = write_bundle(root, {"train": config | sections | SEQUENCES}, 1)
    (root / "scripts").mkdir()
    (root / "scripts" / "trainer.py").write_text("class DetectionTrainer:\n    pass\n")
    return root
