{{- define "medfl.name" -}}
{{- printf "%s-medfl" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "medfl.labels" -}}
app.kubernetes.io/name: medfl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.role }}
{{- end -}}
